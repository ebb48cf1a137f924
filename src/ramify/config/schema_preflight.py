"""The schema of the preflight, a check on a few problems before training starts."""

from ramify.config.bounds import PositiveInt
from ramify.config.schema_parts import Section


class PreflightSection(Section):
    """Grow trees for the first `problems` with the untrained model, report on them, and stop if rewards never differ.

    With `allow_zero_variance` the run starts even then. Without the table there is no preflight.
    """

    enabled: bool = True
    problems: PositiveInt = 8
    allow_zero_variance: bool = False
