"""The parts of an RL run: sampler, publisher and learner, which know nothing of each other, and what keeps its state."""

from dataclasses import dataclass

from ramify.core.protocols import Publisher
from ramify.data.order import ProblemOrder
from ramify.learner.guard import Guard
from ramify.learner.learning import Learning
from ramify.obs.console import RunConsole
from ramify.runs.recorder import Recorder
from ramify.runs.run_folder import RunFolder
from ramify.runs.state import Saver
from ramify.sampler.configs import DynamicSamplingConfig
from ramify.sampler.sampler import Sampler
from ramify.train.configs import PreflightConfig
from ramify.train.evaluations import TrainingEvaluation


@dataclass(frozen=True, slots=True)
class RlRun:
    """All parts of a run.

    Attributes:
        console: Shows the progress.
        folder: Where the run is recorded.
        recorder: Records the steps, and has loggers follow them.
        sampler: Grows and scores trees.
        order: The order of its problems.
        publisher: Hands the learner's weights to the sampler's engine.
        learning: The algorithm and the learner.
        saver: Writes checkpoints.
        guard: The collapse detector, if there is one.
        total_steps: Steps of the whole run.
        problems_per_step: Problems that a step learns from.
        dynamic_sampling: Which of them are refused, if any are.
        preflight: What is tried before the first step.
        evaluation: What is evaluated during training, if anything is.
        is_new: The run starts from a model, not from a checkpoint of its own.
    """

    console: RunConsole
    folder: RunFolder
    recorder: Recorder
    sampler: Sampler
    order: ProblemOrder
    publisher: Publisher
    learning: Learning
    saver: Saver
    guard: Guard | None
    total_steps: int
    problems_per_step: int
    dynamic_sampling: DynamicSamplingConfig | None
    preflight: PreflightConfig
    evaluation: TrainingEvaluation | None
    is_new: bool
