"""Builds syntheses from recipes and runs them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramify.algos.branch_rules import FlatBrancher
from ramify.assemble.agent import build_agent
from ramify.assemble.model import build_model
from ramify.assemble.problems import build_questions, tool_names
from ramify.assemble.reward import build_reward
from ramify.assemble.task import ProblemReader, answering_identity, group_size, open_task
from ramify.chat.renderer import ChatRenderer
from ramify.config.other_runs import record_of
from ramify.config.schema_synth import SynthRecipe
from ramify.config.sizes import note_idle_turn_limit
from ramify.core.errors import ConfigError
from ramify.core.messages import Problem, ToolSpec
from ramify.obs.console import RunConsole
from ramify.obs.metrics import TimingLog
from ramify.runs.run_folder import SYNTHESIS
from ramify.sampler.sampler import Sampler, Scoring
from ramify.sampler.task import Task
from ramify.synth.hints import HintLibrary, as_table, load_hints
from ramify.synth.run import SynthPlan, synthesize

_SORTING = ("max_calls", "max_tokens", "rows_per_question")
"""Keys of [quality] that are applied after sampling."""


def run_synth(recipe: SynthRecipe, console: RunConsole, *, resume: bool = False) -> dict[str, Any]:
    """Sample answers, sort the questions, write the rows into `run.dir`; returns the summary.

    Raises:
        UserError: The recipe, the data, the machine or the folder is wrong.
        RunInterruptedError: Ctrl-C or SIGTERM; the answers so far are saved.
    """
    if recipe.engine.computes_here:
        # Torch takes seconds to import, and only a local model needs it.
        from ramify.modeling.numerics import set_numerics

        set_numerics(recipe.run.threads, recipe.run.deterministic)
    with SYNTHESIS.claim(recipe.run.dir, resume):
        return synthesize(build_synthesis(recipe, console), console)


def build_synthesis(recipe: SynthRecipe, console: RunConsole) -> SynthPlan:
    """Open the task of a synthesis and its hints.

    Raises:
        UserError: The recipe, the data or the machine is wrong.
    """
    direct: list[Problem] = []
    task = open_task(
        recipe,
        build_reward(recipe.reward),
        recipe.data.max_prompt_tokens + recipe.sampling.max_tokens,
        synthesis_questions(recipe, direct),
        console,
        computes=recipe.engine.computes_here,
    )
    environment = task.toolbox.environment
    library = read_hints(recipe, tuple(environment.tools), environment.opens, console.note)
    identity, session = answering_identity(recipe.model, recipe.engine, task)
    made_from = {
        # Rows are sorted anew each time; the least share of right answers also says which questions get hints.
        **recipe.model_dump(mode="json", exclude={"run": True, "log": True, "quality": set(_SORTING)}),
        "seed": recipe.run.seed,
        "deterministic": recipe.run.deterministic,
        **identity,
        "hint_library": None if library is None else as_table(library),
    }
    return SynthPlan(
        folder=recipe.run.dir,
        recipe=record_of(recipe),
        log=recipe.log,
        manifest={"made_from": made_from, "made_with": [session]},
        task=task,
        direct=direct,
        open_sampler=lambda: _sampler(recipe, task, console),
        direct_samples=recipe.sampling.direct,
        tool_samples=recipe.sampling.tools,
        quality=recipe.quality,
        hints=recipe.hints,
        library=library,
        seed=recipe.run.seed,
        price=recipe.price,
        group_size=group_size(recipe.run, recipe.engine),
    )


def synthesis_questions(recipe: SynthRecipe, direct: list[Problem]) -> ProblemReader:
    """Return the reader of a synthesis' questions; it fills `direct` with them under the prompt without tools."""

    def read(
        renderer: ChatRenderer, shown: Mapping[str, Sequence[ToolSpec]]
    ) -> tuple[Sequence[Problem], Sequence[str]]:
        from ramify.runs.trained_prompts import prompt_notes

        questions = build_questions(recipe.data, renderer, shown[""], recipe.model.dialect)
        direct.extend(questions.direct)
        model, problems = recipe.model, questions.with_tools
        differing = prompt_notes(model.path, model.folder, problems, tool_names(shown))
        idle = note_idle_turn_limit(recipe.sampling.max_turn_tokens, recipe.sampling.max_tokens)
        return problems, (*questions.notes, *idle, *differing)

    return read


def read_hints(
    recipe: SynthRecipe, tools: Sequence[str], opens: bool, note: Callable[[str], None]
) -> HintLibrary | None:
    """Read the hints for the recipe's tools; None without `[hints]`. `opens`: its environment begins with an opening.

    Raises:
        UserError: The library cannot be read or has no hint for these tools, or the hints cannot follow direct answers.
    """
    if recipe.hints is None:
        return None
    if opens and recipe.hints.after == "direct":
        raise ConfigError(
            'hints.after: expected "tools", answers without tools have not seen what the environment says at the start'
        )
    whole = load_hints(recipe.hints.library)
    library = whole.for_tools(tools)
    if left := [f"{hint.name} ({hint.tool})" for hint in whole.hints if hint not in library.hints]:
        note(f"hints for tools that the recipe does not have: {', '.join(left)}")
    return library


def _sampler(recipe: SynthRecipe, task: Task, console: RunConsole) -> Sampler:
    timing = TimingLog()
    agent = build_agent(
        engine=recipe.engine,
        run=recipe.run,
        toolbox=task.toolbox,
        renderer=task.renderer,
        model=lambda: build_model(recipe.model, task.context_tokens),
        context_tokens=task.context_tokens,
        brancher=FlatBrancher(probe_tokens=0),
        limits=recipe.sampling.of_trees(recipe.sampling.tools),
        events=timing,
        rewriters=task.rewriters,
        repairs=task.repairs,
        note=console.note,
    )
    return Sampler(task, agent, timing, Scoring(task.reward.fn, timing))
