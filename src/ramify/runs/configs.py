"""Settings of a run: its folder, what makes it repeatable, and which checkpoints it keeps."""

from dataclasses import dataclass

from ramify.core.config import Config, Count, PositiveInt, Seed, Switch, Threads, UserPath


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
