"""Settings of the training loops."""

from dataclasses import dataclass

from ramify.core.config import Config, PositiveInt, Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightConfig(Config):
    """Grow trees for the first `problems` with the untrained model, report on them, and stop if rewards never differ.

    With `allow_zero_variance` the run starts even then. Without the table there is no preflight.
    """

    enabled: Switch = True
    problems: PositiveInt = 8
    allow_zero_variance: Switch = False
