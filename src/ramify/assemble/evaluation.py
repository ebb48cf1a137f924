"""Builds evaluations from recipes and runs them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ramify.algos.branch_rules import FlatBrancher
from ramify.assemble.agent import build_agent
from ramify.assemble.model import build_model
from ramify.assemble.problems import build_eval_problems, tool_names
from ramify.assemble.reward import build_reward
from ramify.assemble.task import ProblemReader, answering_identity, group_size, open_task
from ramify.chat.renderer import ChatRenderer
from ramify.config.other_runs import record_of
from ramify.config.schema_eval import EvalRecipe
from ramify.config.sizes import note_idle_turn_limit
from ramify.core.messages import Problem, ToolSpec
from ramify.eval.evaluation import Evaluation
from ramify.eval.null_agents import null_line, null_scores
from ramify.eval.run import DECIDES, EvalPlan, evaluate_plan
from ramify.eval.statistics import Interval
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import TimingLog
from ramify.rewards.configs import ScoreName
from ramify.runs.checkpoint_files import check_model_folder
from ramify.runs.run_folder import EVALUATION
from ramify.sampler.sampler import Sampler, Scoring
from ramify.sampler.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

REPORTED: tuple[ScoreName, ...] = ("em", "f1", "lenient", "acc", "math_equal")
"""Scores that every evaluation reports, whichever of them decides."""


def run_eval(
    recipe: EvalRecipe, console: RunConsole, *, resume: bool = False, null: bool = False
) -> Evaluation:
    """Evaluate and write the results into `run.dir`; `resume` continues an evaluation in that folder.

    With `null` agents that know nothing are scored beside the model.

    Raises:
        UserError: The recipe, the data, the machine or the folder is wrong.
        RunInterruptedError: Ctrl-C or SIGTERM; finished attempts are saved.
    """
    if recipe.engine.computes_here:
        # Torch takes seconds to import, and only a local model needs it.
        from ramify.modeling.numerics import set_numerics

        set_numerics(recipe.run.threads, recipe.run.deterministic)
    with EVALUATION.claim(recipe.run.dir, resume):
        return evaluate_plan(build_evaluation(recipe, console, null=null), console, resume=resume)


def build_evaluation(recipe: EvalRecipe, console: RunConsole, *, null: bool = False) -> EvalPlan:
    """Open the task of an evaluation; its engine is built once there is something to do.

    With `null` agents that know nothing are scored too.

    Raises:
        UserError: The recipe, the data or the machine is wrong.
    """
    computes = recipe.engine.computes_here
    if computes:
        check_model_folder(recipe.model.folder)
    task = open_task(
        recipe,
        build_reward(recipe.reward, REPORTED),
        recipe.data.max_prompt_tokens + recipe.sampling.max_tokens,
        evaluation_problems(recipe),
        console,
        computes=computes,
    )
    sampling = recipe.sampling

    async def score_null(phase: Phase) -> Mapping[str, Interval]:
        limits = sampling.of_trees(1)
        scores = await null_scores(task, limits, recipe.run.seed, phase, decides=DECIDES[sampling.right_by])
        console.note(null_line(scores))
        return scores

    return EvalPlan(
        folder=recipe.run.dir,
        recipe=record_of(recipe),
        manifest=_manifest(recipe, task),
        task=task,
        open_sampler=lambda note: build_attempter(
            recipe, task, lambda: build_model(recipe.model, task.context_tokens), note
        ),
        attempts=sampling.attempts,
        k=sampling.k,
        right_by=sampling.right_by,
        seed=recipe.run.seed,
        price=recipe.price,
        group_size=group_size(recipe.run, recipe.engine),
        null_scores=score_null if null else None,
    )


def evaluation_problems(recipe: EvalRecipe) -> ProblemReader:
    """Return the reader of an evaluation's problems."""

    def read(
        renderer: ChatRenderer, shown: Mapping[str, Sequence[ToolSpec]]
    ) -> tuple[Sequence[Problem], Sequence[str]]:
        from ramify.runs.trained_prompts import prompt_notes

        model = recipe.model
        problems, notes = build_eval_problems(recipe.data, renderer, shown[""], model)
        differing = prompt_notes(model.path, model.folder, problems, tool_names(shown))
        sampling = recipe.sampling
        idle = note_idle_turn_limit(sampling.max_turn_tokens, sampling.max_tokens)
        return problems, (*notes, *idle, *differing)

    return read


def _manifest(recipe: EvalRecipe, task: Task) -> dict[str, Any]:
    """Return the manifest; of `[run]` only `seed` and `deterministic` can change a score."""
    identity, session = answering_identity(recipe.model, recipe.engine, task)
    scores = {
        **recipe.model_dump(mode="json", exclude={"run"}),
        "seed": recipe.run.seed,
        "deterministic": recipe.run.deterministic,
        **identity,
    }
    return {"scores": scores, "notes": list(task.notes), "made_with": [session]}


def build_attempter(
    recipe: EvalRecipe, task: Task, model: "Callable[[], PreTrainedModel]", note: Callable[[str], None]
) -> Sampler:
    """Return a sampler of single attempts; `model` is called for a local engine only."""
    timing = TimingLog()
    agent = build_agent(
        engine=recipe.engine,
        run=recipe.run,
        toolbox=task.toolbox,
        renderer=task.renderer,
        model=model,
        context_tokens=task.context_tokens,
        brancher=FlatBrancher(probe_tokens=0),
        limits=recipe.sampling.of_trees(1),
        events=timing,
        rewriters=task.rewriters,
        repairs=task.repairs,
        note=note,
    )
    return Sampler(task, agent, timing, Scoring(task.reward.fn, timing))
