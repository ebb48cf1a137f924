"""How long a run is, and settings that only the data can refuse: steps larger than the file, and notes about those that the data leave idle."""

import math

from ramify.config.schema_parts import OptimizerSection, TrainingRunSection
from ramify.core.errors import ConfigError


def num_steps(run: TrainingRunSection, epochs: int, examples: int, per_step: int) -> int:
    """Steps of a whole run: `run.steps`, or as many as `epochs` times the `examples` of the file take."""
    return run.steps or math.ceil(examples * epochs / per_step)


def refuse_large_steps(key: str, per_step: int, available: int) -> None:
    """A step takes no example twice.

    Args:
        key: Of the recipe.
        per_step: Its value: examples of one step.
        available: Examples of the file that `data.train` names, without those that were dropped.

    Raises:
        ConfigError: There are too few for one step.
    """
    if per_step > available:
        raise ConfigError(
            f"{key}: expected at most {available}, the number of usable rows of data.train, got {per_step}"
        )


def note_long_warmup(optimizer: OptimizerSection, total_steps: int) -> tuple[str, ...]:
    """A line where the rate does not come to its peak within the run's `total_steps` optimizer steps."""
    if optimizer.warmup_steps <= total_steps:
        return ()
    return (
        f"note: the run ends within the warm-up (learner.optimizer.warmup_steps = {optimizer.warmup_steps}, optimizer steps "
        f"of the whole run {total_steps}): the rate comes to {total_steps / optimizer.warmup_steps:.2g} of its peak",
    )
