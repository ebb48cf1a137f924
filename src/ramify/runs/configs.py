"""Settings of a run: its folder, what makes it repeatable, which checkpoints it keeps, and who logs it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ramify.core.config import Config, Count, PositiveInt, Seed, Switch, Threads, UserPath

LoggerName: TypeAlias = Literal["tensorboard", "wandb", "trackio", "mlflow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Config):
    """The folder of a run, and what makes it reproducible."""

    dir: UserPath
    seed: Seed = 0
    threads: Threads | None = None
    deterministic: Switch = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRunConfig(RunConfig):
    """A training run: its number of steps, and which checkpoints are kept: the last ones and the best ones.

    Without `steps` a run ends after `data.epochs`. The learning-rate schedule covers the whole run in either case.
    """

    steps: PositiveInt | None = None
    save_every: PositiveInt = 5
    keep_last: PositiveInt = 2
    keep_best: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Config):
    """Where the metrics of each step go besides `metrics.jsonl` and the console."""

    to: tuple[LoggerName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLogConfig(LogConfig):
    """Loggers that can show trajectories (W&B, trackio) get those of every `trees_every`-th step, and of evaluations then."""

    trees_every: Count = 0

    def __post_init__(self) -> None:
        if self.trees_every and not {"wandb", "trackio"} & set(self.to):
            raise ValueError('trees_every: has no effect without "wandb" or "trackio" in log.to. Remove it.')
