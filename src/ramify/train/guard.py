"""The collapse detector: decides from the metrics of a step whether it may train, and what follows if not.

A step that breaks a threshold trains on nothing, and is counted. Some thresholds can be checked on the trees, before
the update; the others on what the update's mini-batches report, and then the rest of them is skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ramify.config.schema_guard import GuardSection


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


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the guard remembers.

    Attributes:
        in_a_row: Steps up to now that broke a threshold, without one between them that did not.
        fallbacks: How often the run went back.
        is_clean: No step since the last checkpoint broke a threshold.
        keeps: Whether good checkpoints stay.
        passed: Settings whose thresholds a step has been within.
        candidate: Step of a clean checkpoint whose weights no step has been looked at with yet.
        last_good: Step of the latest checkpoint that was clean, and whose weights passed at the step after it.
    """

    in_a_row: int = 0
    fallbacks: int = 0
    is_clean: bool = True
    candidate: int | None = None
    last_good: int | None = None
    keeps: bool = True
    passed: tuple[str, ...] = ()

    @property
    def needed(self) -> frozenset[int]:
        """Steps whose checkpoints must stay."""
        return frozenset(step for step in (self.candidate, self.last_good) if step is not None)

    def saved(self, step: int) -> "GuardState":
        """After the checkpoint of `step` was due. The one of step 0, the recipe's own model, is good."""
        if not self.keeps:
            return self
        if step == 0:
            return replace(self, last_good=0)
        return replace(self, candidate=step if self.is_clean else self.candidate, is_clean=True)


@dataclass(frozen=True, slots=True)
class Guard:
    """Pure decisions on values.

    Attributes:
        section: The thresholds.
        max_tokens: What one trajectory may have, for `max_length`.
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
            ("update/non_finite", 1.0, "max_non_finite", section.max_non_finite),
        )
        for metric, scale, setting, threshold in upper:
            value = metrics.get(metric)
            if threshold is not None and value is not None:
                yield Violation(metric, value * scale, setting, threshold), value * scale > threshold
        # Of all that was sampled: the update's own is of groups that are not dead, and has no value where all are.
        entropy = metrics.get("health/entropy")
        if section.min_entropy is not None and entropy is not None:
            found = Violation("health/entropy", entropy, "min_entropy", section.min_entropy)
            yield found, entropy < section.min_entropy

    def count(self, state: GuardState, found: Violation | None) -> tuple[GuardState, Action]:
        """What follows from a step."""
        if found is None:
            passed = state.last_good if state.candidate is None else state.candidate
            return replace(state, in_a_row=0, candidate=None, last_good=passed), Action.GO_ON
        # The candidate's weights are under suspicion: one that broke a threshold is never gone back to.
        worse = replace(state, in_a_row=state.in_a_row + 1, is_clean=False, candidate=None)
        if worse.in_a_row < self.section.patience:
            return worse, Action.GO_ON
        if worse.fallbacks >= self.section.max_fallbacks:
            return worse, Action.STOP
        return replace(worse, in_a_row=0, fallbacks=worse.fallbacks + 1), Action.FALL_BACK
