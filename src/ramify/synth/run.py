"""`ramify synth`: Tool-Star's data from questions (arXiv 2505.16410, section 3), top to bottom."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.algos.branch_rules import FlatBrancher
from ramify.assemble.agent import build_agent, build_limits, build_renderer, engine_without_tools
from ramify.assemble.model import build_model
from ramify.assemble.problems import Shown, build_questions
from ramify.assemble.reward import build_reward
from ramify.chat.renderer import ChatRenderer
from ramify.config.load import resolved
from ramify.config.schema_synth import SynthRecipe
from ramify.core.closing import close_all
from ramify.core.errors import ConfigError, Interrupted
from ramify.core.json_types import part
from ramify.core.messages import Problem
from ramify.files.durable import RECIPE, replace_file
from ramify.obs.console import RunConsole
from ramify.obs.metrics import TimingLog
from ramify.runs import manifest
from ramify.runs.manifest import MANIFEST, note_session, read_manifest, refuse_other, write_manifest
from ramify.runtime.agent_loop import StopOnSignal, agent_loop
from ramify.sampler.groups import group_size
from ramify.sampler.identity import agent_identity, without_reach
from ramify.sampler.recorded import TreeRecorder
from ramify.sampler.sampler import Sampler, Task, open_task
from ramify.sampler.scoring import Scoring
from ramify.sampler.task_files import ProblemReader
from ramify.synth.folder import SYNTHESIS, check_synth_folder, read_stage, stage_file
from ramify.synth.hints import HintLibrary, as_table, load_hints
from ramify.synth.results import Sorter, write_results
from ramify.synth.rows import is_right
from ramify.synth.sampling import (
    DIRECT,
    TOOLS,
    planned_answers,
    planned_hints,
    with_samples,
    without_tools,
)

_SORTING = ("max_calls", "max_tokens", "rows_per_question")
"""What of `[quality]` acts once the answers are there."""


def run_synth(recipe: SynthRecipe, console: RunConsole, *, resume: bool = False) -> dict[str, Any]:
    """Sample answers, sort the questions, write the rows into `run.dir`; returns the summary.

    Raises:
        UserError: The recipe, the data, the machine or the folder is wrong.
        Interrupted: Ctrl-C or SIGTERM; the answers so far are saved.
    """
    if recipe.engine.computes_here:
        # Torch takes seconds to import, and only a local model needs it.
        from ramify.modeling.numerics import set_numerics

        set_numerics(recipe.run.threads, recipe.run.deterministic)
    folder = recipe.run.dir
    with SYNTHESIS.claim(folder, lambda: check_synth_folder(folder, resume)):
        direct: list[Problem] = []
        task = _open(recipe, console, direct)
        environment = task.toolbox.environment
        library = read_hints(recipe, tuple(environment.tools), environment.opens, console.note)
        _take_up(recipe, task, library, console)
        _sample_all(recipe, task, direct, library, console)
        if task.repairs is not None and (used := task.repairs.usage) is not None:
            console.note(
                f"the helper of the repair tools answered {used.answers} times in this session: {used.prompt_tokens} tokens "
                f"read, {used.completion_tokens} written"
            )
        sorter = Sorter(task.renderer, recipe.quality, recipe.run.seed)
        return write_results(folder, task.problems, sorter, recipe.price)


def _open(recipe: SynthRecipe, console: RunConsole, direct: list[Problem]) -> Task:
    """The task of the recipe; fills `direct` with its questions under the prompt without tools."""
    return open_task(
        recipe,
        build_reward(recipe.reward),
        recipe.data.max_prompt_tokens + recipe.sampling.max_tokens,
        synthesis_questions(recipe, direct),
        console,
        computes=recipe.engine.computes_here,
    )


def synthesis_questions(recipe: SynthRecipe, direct: list[Problem]) -> ProblemReader:
    """Return the reader of a synthesis' questions; it fills `direct` with them under the prompt without tools."""

    def read(shown: Mapping[str, Shown]) -> tuple[Sequence[Problem], Sequence[str]]:
        renderer, tools = shown[""].renderer, shown[""].tools
        questions = build_questions(
            recipe.data, renderer, _plain(recipe, renderer), tools, recipe.model.dialect
        )
        direct.extend(questions.direct)
        return questions.with_tools, questions.notes

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


def _plain(recipe: SynthRecipe, renderer: ChatRenderer) -> ChatRenderer:
    """The renderer of an agent without tools."""
    return build_renderer(recipe.model.dialect, renderer.tokenizer, ())


def _take_up(recipe: SynthRecipe, task: Task, library: HintLibrary | None, console: RunConsole) -> None:
    """Check that a folder goes on with what it was made from, or make it one of this synthesis.

    Raises:
        ConfigError: Model, data, tools, reward, hints or settings differ.
    """
    folder = recipe.run.dir
    identity, device = agent_identity(recipe.model, recipe.engine, task)
    made_from = {
        # Rows are sorted anew each time; the least share of right answers also says which questions get hints.
        **recipe.model_dump(mode="json", exclude={"run": True, "quality": set(_SORTING)}),
        "seed": recipe.run.seed,
        "deterministic": recipe.run.deterministic,
        **identity,
        "hint_library": None if library is None else as_table(library),
    }
    made_with = manifest.made_with(device)
    if SYNTHESIS.has_begun(folder) and (folder / MANIFEST).exists():
        before = read_manifest(folder, made_from=part())
        refuse_other(folder, "a synthesis", without_reach(before["made_from"]), without_reach(made_from))
        note_session(folder, before, made_with, console.note)
    else:
        write_manifest(folder, {"made_from": made_from, "made_with": [made_with]})
    replace_file(folder / RECIPE, resolved(recipe).encode())


def _sample_all(
    recipe: SynthRecipe,
    task: Task,
    direct: Sequence[Problem],
    library: HintLibrary | None,
    console: RunConsole,
) -> None:
    folder, sampling = recipe.run.dir, recipe.sampling
    with agent_loop() as loop, StopOnSignal(loop) as stop:
        sampler = direct_engine = None
        try:
            sampler = _sampler(recipe, task, console)
            renderer = _plain(recipe, task.renderer)
            direct_engine = engine_without_tools(
                recipe.engine, sampler.agent.engine, renderer, task.context_tokens, console.note
            )
            loop.settle()
            recorder = TreeRecorder(console, stop, group_size(recipe.run, recipe.engine, leaves=1))
            plain = without_tools(sampler, direct_engine, renderer, sampling.direct)
            recorder.grow(
                "direct", stage_file(folder, "direct"), plain, planned_answers(direct, DIRECT), len(direct)
            )
            with_tools = with_samples(sampler, sampling.tools)
            recorder.grow(
                "tools",
                stage_file(folder, "tools"),
                with_tools,
                planned_answers(task.problems, TOOLS),
                len(direct),
            )
            if recipe.hints is not None and library is not None:
                asked = _unanswered(folder, recipe.quality.right_at)
                alone = with_samples(sampler, 1)
                planned = planned_hints(folder, recipe.hints, library, alone, task.problems, asked)
                recorder.grow(
                    "hints",
                    stage_file(folder, "hints"),
                    alone,
                    planned,
                    len(asked) * min(recipe.hints.per_question, getattr(sampling, recipe.hints.after)),
                )
        except Interrupted as stopped:
            after = f"the answers that have ended are in {folder}, go on with --resume"
            raise Interrupted(stopped.number, after) from None
        finally:
            loop.run(close_all(each for each in (direct_engine, sampler or task) if each is not None))


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
        limits=build_limits(recipe.sampling, recipe.sampling.tools),
        events=timing,
        rewriters=task.rewriters,
        repairs=task.repairs,
        note=console.note,
    )
    return Sampler(task, agent, timing, Scoring(task.reward.fn, timing))


def _unanswered(folder: Path, right_at: float) -> frozenset[str]:
    """Return the questions that are not answered without tools: hints for the others would be for nothing."""
    direct = (
        (traced.tree.problem.id, [is_right(reward) for reward in traced.rewards if reward.counts])
        for traced in read_stage(folder, "direct")
    )
    return frozenset(
        question for question, right in direct if not right or sum(right) / len(right) < right_at
    )
