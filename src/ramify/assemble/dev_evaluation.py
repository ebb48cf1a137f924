"""Builds evaluations during training: the problems of `[eval]`, and an agent that computes with the run's weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramify.algos.branch_rules import FlatBrancher
from ramify.assemble.evaluation import build_attempter
from ramify.assemble.problems import build_eval_problems
from ramify.assemble.reward import build_reward
from ramify.assemble.task import ProblemReader, group_size, open_task
from ramify.assemble.worker import WorkerPlan, build_engine_model
from ramify.config.schema_eval import EvalRecipe, dev_data
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import note_idle_turn_limit
from ramify.core.errors import DataError
from ramify.core.messages import Problem, ToolSpec
from ramify.data.configs import DataFiles
from ramify.engines.configs import TrainingEngineConfig
from ramify.learner.update import Learner
from ramify.obs.console import RunConsole
from ramify.obs.metrics import TimingLog
from ramify.runs.manifest import problems_sha256
from ramify.runs.recorder import Recorder
from ramify.sampler.publisher import build_publisher
from ramify.sampler.sampler import Sampler, Scoring
from ramify.sampler.task import Task
from ramify.train.configs import DECODING_KEYS, EvaluationConfig
from ramify.train.loop import TrainingEvaluation

if TYPE_CHECKING:
    from ramify.chat.renderer import ChatRenderer
    from ramify.data.overlap import Questions


def read_dev_problems(
    recipe: TrainRecipe,
    config: EvaluationConfig,
    renderer: "ChatRenderer",
    tools: Sequence[ToolSpec],
    training: Sequence[Problem],
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Read the problems of `eval.test` in a recipe of RL; returns them with notes.

    Args:
        recipe: The recipe.
        config: Its `[eval]`.
        renderer: Renders the prompts and counts their tokens.
        tools: The agent's tools.
        training: The problems that the run trains on.

    Raises:
        DataError: They cannot be read, or none is left.
    """
    from ramify.data.overlap import questions_of
    from ramify.runs.trained_prompts import difference_notes, training_stage

    data = dev_data(config, recipe.data.max_prompt_tokens, recipe.data.instructions)
    problems, notes = build_eval_problems(data, renderer, tools, recipe.model)
    trained = questions_of(training)
    stage = training_stage(recipe.command, recipe.model.dialect, (), training, recipe.model.folder)
    differing = (f"eval.test: {note}" for note in difference_notes("this run trains", stage, problems, ()))
    idle = note_idle_turn_limit(config.max_turn_tokens, config.max_tokens or recipe.rollout.max_tokens)
    return problems, (*notes, *idle, *_memory_notes(problems, trained), *differing)


def examples_dev_problems(recipe: EvalRecipe, train: DataFiles) -> ProblemReader:
    """Return the reader of `eval.test` in a recipe that trains on the examples of files."""

    def read(
        renderer: "ChatRenderer", shown: Mapping[str, Sequence[ToolSpec]]
    ) -> tuple[Sequence[Problem], Sequence[str]]:
        from ramify.data.overlap import read_questions
        from ramify.data.sources import data_files

        problems, notes = build_eval_problems(recipe.data, renderer, shown[""], recipe.model)
        try:
            return problems, (*notes, *_memory_notes(problems, read_questions(map(str, data_files(train)))))
        except DataError as error:
            return problems, (
                *notes,
                f"not checked whether the problems of eval.test are trained on: {error}",
            )

    return read


def _memory_notes(problems: Sequence[Problem], trained: "Questions") -> tuple[str, ...]:
    from ramify.data.overlap import without_questions

    if repeated := len(problems) - len(without_questions(problems, trained)):
        return (
            f"eval.test: {repeated} of {len(problems)} problems are trained on. Their scores measure memory too.",
        )
    return ()


@dataclass(frozen=True, slots=True)
class DevTask:
    """The evaluations of a run that trains on examples, before there are weights.

    Attributes:
        config: The run's `[eval]`.
        recipe: What it stands for.
        engine: Of the attempts.
        task: The problems, the tools and the reward.
    """

    config: EvaluationConfig
    recipe: EvalRecipe
    engine: TrainingEngineConfig
    task: Task

    @property
    def made_from(self) -> dict[str, Any]:
        """The checksums of what the attempts depend on; the sandbox level may change, as in RL."""
        identities = self.task.toolbox.identities.items()
        return {
            "eval.test": problems_sha256(self.task.problems),
            "eval.tools": {name: identity for name, identity in identities if name != "python"},
            "eval.rewards": dict(self.task.reward.identities),
            "eval.helper": None if self.task.repairs is None else self.task.repairs.sha256,
        }

    def build(
        self, learner: Learner, plan: WorkerPlan, total_steps: int, recorder: Recorder, console: RunConsole
    ) -> TrainingEvaluation:
        """Build the engine, which computes with the learner's weights.

        Raises:
            UserError: The engine cannot have these weights.
        """
        model = build_engine_model(self.engine, learner.model, plan.engine_model)
        sampler = build_attempter(self.recipe, self.task, lambda: model, console.note)
        return TrainingEvaluation(
            config=self.config,
            sampler=sampler,
            publisher=build_publisher(sampler, learner, model, self.recipe.model.dtype),
            group_size=group_size(self.recipe.run, self.engine),
            total_steps=total_steps,
            folder=recorder.folder,
            console=console,
            loggers=recorder.loggers,
        )


def open_dev_task(recipe: SftRecipe, console: RunConsole) -> DevTask | None:
    """Open the task of evaluations beside training on examples; None without `[eval]`.

    Raises:
        UserError: The recipe, the data or the machine is wrong.
    """
    config, own, engine = recipe.eval, recipe.evaluation, recipe.engine
    if config is None or own is None or engine is None:
        return None
    context_tokens = own.data.max_prompt_tokens + own.sampling.max_tokens
    reader = examples_dev_problems(own, recipe.data.train)
    task = open_task(own, build_reward(own.reward), context_tokens, reader, console)
    return DevTask(config, own, engine, task)


def share_agent(
    recipe: TrainRecipe, config: EvaluationConfig, sampler: Sampler, problems: Sequence[Problem]
) -> Sampler:
    """Return a sampler of attempts at `problems` that shares the engine, the tools and the reward of RL's own."""
    task, rollout, timing = sampler.task, recipe.rollout, TimingLog()
    limits = replace(
        sampler.agent.limits,
        n=1,
        temperature=config.temperature,
        **{key: getattr(config, key) for key in DECODING_KEYS},
        max_tokens=config.max_tokens or rollout.max_tokens,
        max_calls=rollout.max_calls if config.max_calls is None else config.max_calls,
        max_result_chars=config.max_result_chars or rollout.max_result_chars,
    )
    agent = replace(
        sampler.agent,
        brancher=FlatBrancher(probe_tokens=0),
        limits=limits,
        events=timing,
        branch_at="before_probe",
        all_entropies=False,
    )
    return Sampler(replace(task, problems=problems), agent, timing, Scoring(task.reward.fn, timing))
