"""The length of a run, and checks of settings against the number of examples."""

import math

from ramify.config.schema_parts import OptimizerSection, TrainingRunSection
from ramify.core.errors import ConfigError


def num_steps(run: TrainingRunSection, epochs: int, examples: int, per_step: int) -> int:
    """Number of steps of a whole run: `run.steps`, or else as many as `epochs` over all `examples` need."""
    return run.steps or math.ceil(examples * epochs / per_step)


def refuse_large_steps(key: str, per_step: int, available: int) -> None:
    """Refuse steps with more examples than there are, because a step uses no example twice.

    Args:
        key: Key of the recipe that sets the examples per step.
        per_step: Its value.
        available: Number of examples in `data.train`, without dropped ones.

    Raises:
        ConfigError: There are too few examples for one step.
    """
    if per_step > available:
        raise ConfigError(
            f"{key}: expected at most {available}, the number of usable rows of data.train, got {per_step}"
        )


def note_long_warmup(optimizer: OptimizerSection, total_steps: int) -> tuple[str, ...]:
    """A note if the learning rate does not reach its peak within the run's `total_steps` optimizer steps."""
    if optimizer.warmup_steps <= total_steps:
        return ()
    return (
        f"note: the run ends within the warm-up (learner.optimizer.warmup_steps = {optimizer.warmup_steps}, optimizer steps "
        f"of the whole run {total_steps}): the rate reaches {total_steps / optimizer.warmup_steps:.2g} of its peak",
    )
