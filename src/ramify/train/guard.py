"""The collapse detector: decides from the metrics of a step whether it may train, and what the run does if not.

A step that violates a threshold is counted and not trained on. Some thresholds are checked on the trees, before the
update. The others are checked on the reports of the update's mini-batches; after a violation the rest are skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ramify.config.schema_train import GuardSection


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
    """What the guard remembers.

    Attributes:
        in_a_row: Number of consecutive steps, up to now, that violated a threshold.
        fallbacks: How often the run fell back to an earlier checkpoint.
        is_clean: Whether no step since the last checkpoint violated a threshold.
        keeps: Whether good checkpoints are kept.
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
        """How far the running share of right answers is below its best, as a part of it; None: it cannot be told yet."""
        if self.weight < _ENOUGH or self.best < _LEAST_BEST:
            return None
        return 1.0 - self.right / self.weight / self.best

    def after_batch(self, correct: float | None, problems: int) -> "GuardState":
        """The state with one more step in the running share; `correct` is the step's share of right answers."""
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
        """The state after the scheduled checkpoint of `step`. That of step 0, the recipe's own model, is good."""
        if not self.keeps:
            return self
        if step == 0:
            return replace(self, last_good=0)
        return replace(self, candidate=step if self.is_clean else self.candidate, is_clean=True)


@dataclass(frozen=True, slots=True)
class Guard:
    """Pure decisions on metrics.

    Attributes:
        section: The thresholds.
        max_tokens: Most tokens of a trajectory, for `max_length`.
    """

    section: GuardSection
    max_tokens: int

    def start(self) -> GuardState:
        """Before the first step."""
        return GuardState(keeps=self.section.keep_good)

    def look(
        self, metrics: Mapping[str, float | None], passed: Sequence[str] | None = None
    ) -> Violation | None:
        """The first threshold that is broken; a metric that is absent or None breaks none.

        `passed` are the settings whose thresholds a step was within before; None: all count.
        """
        counts = passed if passed is not None and self.section.after_passing else None
        broken = (
            found
            for found, is_broken in self._measured(metrics)
            if is_broken and (counts is None or found.setting in counts)
        )
        return next(broken, None)

    def passed(self, state: GuardState, metrics: Mapping[str, float | None]) -> GuardState:
        """Remember which thresholds a step is within."""
        within = {found.setting for found, is_broken in self._measured(metrics) if not is_broken}
        return replace(state, passed=tuple(sorted(within.union(state.passed))))

    def _measured(self, metrics: Mapping[str, float | None]) -> Iterator[tuple[Violation, bool]]:
        """Every threshold with the value of its metric, and whether that breaks it."""
        section = self.section
        upper = (
            ("health/repetition", 1.0, "max_repetition", section.max_repetition),
            ("health/written", 1.0 / self.max_tokens, "max_length", section.max_length),
            ("health/invalid_calls", 1.0, "max_invalid_calls", section.max_invalid_calls),
            ("group/zero_variance", 1.0, "max_zero_variance", section.max_zero_variance),
            ("reward/fall", 1.0, "max_fall", section.max_fall),
            ("update/non_finite", 1.0, "max_non_finite", section.max_non_finite),
        )
        for metric, scale, setting, threshold in upper:
            value = metrics.get(metric)
            if threshold is not None and value is not None:
                yield Violation(metric, value * scale, setting, threshold), value * scale > threshold
        # Over all sampled tokens: the update's own entropy leaves out dead groups, and has no value if all are dead.
        entropy = metrics.get("health/entropy")
        if section.min_entropy is not None and entropy is not None:
            found = Violation("health/entropy", entropy, "min_entropy", section.min_entropy)
            yield found, entropy < section.min_entropy

    def count(self, state: GuardState, found: Violation | None) -> tuple[GuardState, Action]:
        """The new state and what the run does next, given what `look` found in a step."""
        if found is None:
            passed = state.last_good if state.candidate is None else state.candidate
            return replace(state, in_a_row=0, candidate=None, last_good=passed), Action.GO_ON
        # The candidate's weights are suspect: the run never falls back to a checkpoint that violated a threshold.
        worse = replace(state, in_a_row=state.in_a_row + 1, is_clean=False, candidate=None)
        if worse.in_a_row < self.section.patience:
            return worse, Action.GO_ON
        if worse.fallbacks >= self.section.max_fallbacks:
            return worse, Action.STOP
        # The running share is that of weights which the run gives up.
        forgot = replace(worse, in_a_row=0, fallbacks=worse.fallbacks + 1, right=0.0, weight=0.0)
        return forgot, Action.FALL_BACK
