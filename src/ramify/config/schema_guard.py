"""The schema of the collapse detector: `[guard]` of a reinforcement-learning recipe."""

from pydantic import model_validator

from ramify.config.bounds import BelowOne, Count, Nats, PositiveInt
from ramify.config.schema_parts import Section


class GuardSection(Section):
    """Thresholds that tell when a run has collapsed, and what to do then; a threshold that is left out is not checked.

    `max_repetition`, `max_invalid_calls`, `max_zero_variance`: the metrics `health/repetition`,
    `health/invalid_calls` and `group/zero_variance`. `max_length`: `health/written` as a share of
    `rollout.max_tokens`. `min_entropy`: `health/entropy`, nats. `max_non_finite`: `update/non_finite`.

    After `patience` consecutive steps that break a threshold, the run goes back to the last good checkpoint; after
    `max_fallbacks` such fallbacks it stops. With `after_passing` a threshold is checked only after the first step
    within it: a model that starts beyond it has not collapsed, it has yet to learn. `keep_good` keeps the last good
    checkpoint (at first that of step 0) in addition to those that `run.keep_last` keeps.
    """

    enabled: bool = True
    after_passing: bool = False
    keep_good: bool = True
    patience: PositiveInt = 3
    max_fallbacks: Count = 2
    max_repetition: BelowOne | None = None
    max_length: BelowOne | None = None
    max_invalid_calls: BelowOne | None = None
    max_zero_variance: BelowOne | None = None
    min_entropy: Nats | None = None
    max_non_finite: Count | None = None

    @model_validator(mode="after")
    def _looks_at_something(self) -> "GuardSection":
        thresholds = sorted(name for name in GuardSection.model_fields if name.startswith(("max_", "min_")))
        thresholds.remove("max_fallbacks")
        if self.enabled and all(getattr(self, name) is None for name in thresholds):
            raise ValueError(f"expected at least one of {thresholds}, or no such section")
        if self.max_fallbacks and not self.keep_good:
            raise ValueError(
                "max_fallbacks: keep_good = false leaves no checkpoint to go back to; set max_fallbacks = 0"
            )
        return self


DEFAULT_GUARD = GuardSection(
    after_passing=True,
    keep_good=False,
    max_fallbacks=0,
    max_repetition=0.6,
    max_length=0.95,
    max_invalid_calls=0.9,
)
"""Used if a recipe has no `[guard]`. No healthy run comes near its thresholds, so it stops only runs that are lost."""
