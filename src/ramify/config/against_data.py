"""Settings that only the data can refuse: steps larger than the file, and notes about those that the data leave idle."""

from ramify.config.schema_parts import OptimizerSection
from ramify.core.errors import ConfigError


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
