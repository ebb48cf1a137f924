"""The collapse detector: decides from the metrics of a step whether it may train, and what the run does if not.

A step that violates a threshold is counted and not trained on. Some thresholds are checked on the trees, before the
update. The others are checked on the reports of the update's mini-batches; after a violation the rest are skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ramify.core.config import BelowOne, Config, Count, Nats, PositiveInt, Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig(Config):
    """Thresholds that tell when a run has collapsed, and what to do then; a threshold that is left out is not checked.

    `max_repetition`, `max_invalid_calls`, `max_zero_variance`: the metrics `health/repetition`,
    `health/invalid_calls` and `group/zero_variance`. `max_length`: `health/written` as a share of
    `rollout.max_tokens`. `min_entropy`: `health/entropy`, nats. `max_non_finite`: `update/non_finite`. `max_fall`: how far
    the share of right answers (`reward/part/correct`, over about 64 problems) may fall from its best, as a part of it.

    After `patience` consecutive steps that break a threshold, the run goes back to the last good checkpoint; after
    `max_fallbacks` such fallbacks it stops. With `after_passing` a threshold is checked only after the first step
    within it: a model that starts beyond it has not collapsed, it has yet to learn. `keep_good` keeps the last good
    checkpoint (at first that of step 0) in addition to those that `run.keep_last` keeps.
    """

    enabled: Switch = True
    after_passing: Switch = False
    keep_good: Switch = True
    patience: PositiveInt = 3
    max_fallbacks: Count = 2
    max_repetition: BelowOne | None = None
    max_length: BelowOne | None = None
    max_invalid_calls: BelowOne | None = None
    max_zero_variance: BelowOne | None = None
    max_fall: BelowOne | None = None
    min_entropy: Nats | None = None
    max_non_finite: Count | None = None

    def __post_init__(self) -> None:
        thresholds = sorted(name for name in self.values() if name.startswith(("max_", "min_")))
        thresholds.remove("max_fallbacks")
        if self.enabled and all(getattr(self, name) is None for name in thresholds):
            raise ValueError(f"expected at least one of {thresholds}, or no such section")
        if self.max_fallbacks and not self.keep_good:
            raise ValueError(
                "max_fallbacks: keep_good = false leaves no checkpoint to go back to. Set max_fallbacks = 0"
            )

    def refuse_idle(self, n: int, max_calls: int) -> None:
        """Refuse thresholds that trees of `n` trajectories with at most `max_calls` calls break always, or never (ValueError)."""
        if self.max_zero_variance is not None and n == 1:
            raise ValueError(
                "guard.max_zero_variance: groups of one trajectory never vary, so every step would break it. Remove it."
            )
        if self.max_invalid_calls is not None and not self.after_passing and max_calls == 0:
            raise ValueError("guard.max_invalid_calls: rollout.max_calls = 0 allows no calls. Remove it.")


DEFAULT_GUARD = GuardConfig(
    after_passing=True,
    keep_good=False,
    max_fallbacks=0,
    max_repetition=0.6,
    max_length=0.95,
    max_invalid_calls=0.9,
    max_fall=0.9,
)
"""Used if a recipe has no `[guard]`. No healthy run comes near its thresholds, so it stops only runs that are lost."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A metric beyond its threshold; `setting` is the key of `[guard]`."""

    metric: str
    value: float
    setting: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric} = {self.value:.3g} breaks guard.{self.setting} = {self.threshold:g}"


class Action(StrEnum):
    """What a run does next."""

    GO_ON = "go on"
    FALL_BACK = "fall back"
    STOP = "stop"


FALL_PROBLEMS = 64
"""The running share of right answers is over about this many problems, however many a step has."""
_ENOUGH, _LEAST_BEST = 0.6, 0.1
"""A running share counts once it is over about `FALL_PROBLEMS` problems, and can fall once it has been this large."""


@dataclass(frozen=True, slots=True)
class GuardState:
    """The guard's memory of earlier steps.

    Attributes:
        in_a_row: Number of consecutive steps, up to now, that violated a threshold.
        fallbacks: How often the run fell back to an earlier checkpoint.
        is_clean: True if no step since the last checkpoint violated a threshold.
        keeps: True if good checkpoints are kept.
        passed: Settings whose thresholds some step was within.
        candidate: Step of a clean checkpoint whose weights no later step has tested yet.
        last_good: Step of the latest good checkpoint: it was clean, and the step after it passed too.
        right, weight: Exponentially weighted sum of the share of right answers of the steps, and of the weights.
        best: The largest running share of right answers so far.
    """

    in_a_row: int = 0
    fallbacks: int = 0
    is_clean: bool = True
    candidate: int | None = None
    last_good: int | None = None
    keeps: bool = True
    passed: tuple[str, ...] = ()
    right: float = 0.0
    weight: float = 0.0
    best: float = 0.0

    @property
    def fall(self) -> float | None:
        """The drop of the running share of right answers below its best, as a share of that; None: not known yet."""
        if self.weight < _ENOUGH or self.best < _LEAST_BEST:
            return None
        return 1.0 - self.right / self.weight / self.best

    def after_batch(self, correct: float | None, problems: int) -> "GuardState":
        """Return the state with one more step in the running share; `correct` is the step's share of right answers."""
        if correct is None:
            return self
        new = min(1.0, problems / FALL_PROBLEMS)
        right, weight = (1 - new) * self.right + new * correct, (1 - new) * self.weight + new
        best = max(self.best, right / weight) if weight >= _ENOUGH else self.best
        return replace(self, right=right, weight=weight, best=best)

    @property
    def needed(self) -> frozenset[int]:
        """Steps whose checkpoints must stay."""
        return frozenset(step for step in (self.candidate, self.last_good) if step is not None)

    def saved(self, step: int) -> "GuardState":
        """Return the state after the scheduled checkpoint of `step`. That of step 0, the recipe's own model, is good."""
        if not self.keeps:
            return self
        if step == 0:
            return replace(self, last_good=0)
        return replace(self, candidate=step if self.is_clean else self.candidate, is_clean=True)


@dataclass(frozen=True, slots=True)
class Guard:
    """Decides from each step's metrics whether the policy has collapsed, and what to do; its memory is a `GuardState`.

    Attributes:
        config: The thresholds.
        max_tokens: Most tokens of a trajectory, for `max_length`.
    """

    config: GuardConfig
    max_tokens: int

    def start(self) -> GuardState:
        """Return the state before the first step."""
        return GuardState(keeps=self.config.keep_good)

    def look(
        self, metrics: Mapping[str, float | None], passed: Sequence[str] | None = None
    ) -> Violation | None:
        """Return the first threshold that is broken; a metric that is absent or None breaks none.

        `passed` are the settings whose thresholds a step was within before; None: all count.
        """
        counts = passed if passed is not None and self.config.after_passing else None
        broken = (
            violation
            for violation, is_broken in self._measured(metrics)
            if is_broken and (counts is None or violation.setting in counts)
        )
        return next(broken, None)

    def passed(self, state: GuardState, metrics: Mapping[str, float | None]) -> GuardState:
        """Remember which thresholds a step is within."""
        within = {violation.setting for violation, is_broken in self._measured(metrics) if not is_broken}
        return replace(state, passed=tuple(sorted(within.union(state.passed))))

    def _measured(self, metrics: Mapping[str, float | None]) -> Iterator[tuple[Violation, bool]]:
        """Every threshold with the value of its metric, and whether that breaks it."""
        config = self.config
        upper = (
            ("health/repetition", 1.0, "max_repetition", config.max_repetition),
            ("health/written", 1.0 / self.max_tokens, "max_length", config.max_length),
            ("health/invalid_calls", 1.0, "max_invalid_calls", config.max_invalid_calls),
            ("group/zero_variance", 1.0, "max_zero_variance", config.max_zero_variance),
            ("reward/fall", 1.0, "max_fall", config.max_fall),
            ("update/non_finite", 1.0, "max_non_finite", config.max_non_finite),
        )
        for metric, scale, setting, threshold in upper:
            value = metrics.get(metric)
            if threshold is not None and value is not None:
                yield Violation(metric, value * scale, setting, threshold), value * scale > threshold
        # Over all sampled tokens: the update's own entropy leaves out dead groups, and has no value if all are dead.
        entropy = metrics.get("health/entropy")
        if config.min_entropy is not None and entropy is not None:
            violation = Violation("health/entropy", entropy, "min_entropy", config.min_entropy)
            yield violation, entropy < config.min_entropy

    def count(self, state: GuardState, violation: Violation | None) -> tuple[GuardState, Action]:
        """Return the new state and what the run does next, given the violation that `look` returned."""
        if violation is None:
            passed = state.last_good if state.candidate is None else state.candidate
            return replace(state, in_a_row=0, candidate=None, last_good=passed), Action.GO_ON
        # The candidate's weights are suspect: the run never falls back to a checkpoint that violated a threshold.
        worse = replace(state, in_a_row=state.in_a_row + 1, is_clean=False, candidate=None)
        if worse.in_a_row < self.config.patience:
            return worse, Action.GO_ON
        if worse.fallbacks >= self.config.max_fallbacks:
            return worse, Action.STOP
        # The running share is that of weights which the run gives up.
        forgot = replace(worse, in_a_row=0, fallbacks=worse.fallbacks + 1, right=0.0, weight=0.0)
        return forgot, Action.FALL_BACK
