"""Rank correlation and AUROC of scores against effects, with bootstrap intervals over problems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ramify.core.draws import stream
from ramify.core.records import Floats, Ints
from ramify.eval.statistics import Interval

_RESAMPLES = 500
_FEWEST = 100
"""Resamples with a value that an interval needs."""
_DIGITS = 12
"""Digits, of the largest size, in which values differ that are not equal."""

Statistic: TypeAlias = Callable[[Floats, Floats], float]
"""Of scores and effects; NaN where it has no value."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """A score of decisions against their effects. An interval is None where its value does not exist.

    Attributes:
        name: Of the score.
        n: Decisions that have the score.
        spearman: Rank correlation with the effects.
        auroc: Chance that of a decision with a positive and another with a negative effect the first has the higher score.
        sure: As `auroc`, over decisions whose interval excludes 0.
        n_sure: Number of these.
    """

    name: str
    n: int
    spearman: Interval | None
    auroc: Interval | None
    sure: Interval | None
    n_sure: int


def rank_score(
    name: str,
    scores: Sequence[float | None],
    effects: Sequence[float],
    is_sure: Sequence[bool],
    problems: Sequence[str],
) -> Ranking:
    """Compare scores with effects; None: the decision has no score.

    Decisions of a problem share trajectories, so the bootstrap resamples problems.
    """
    rows = [row for row, score in enumerate(scores) if score is not None]
    # Means of equal numbers differ in the last bit by how many there are, which would break their ties.
    score, effect = (_without_noise([values[row] for row in rows]) for values in (scores, effects))
    sure = np.array([is_sure[row] for row in rows], dtype=np.bool_)
    groups = _groups([problems[row] for row in rows])
    sure_groups = _groups([problems[row] for row, each in zip(rows, sure, strict=True) if each])
    return Ranking(
        name,
        len(rows),
        _bootstrap(spearman, score, effect, groups),
        _bootstrap(auroc, score, effect, groups),
        _bootstrap(auroc, score[sure], effect[sure], sure_groups),
        int(sure.sum()),
    )


def spearman(first: Floats, second: Floats) -> float:
    """Return Spearman's rank correlation; NaN if one of them has a single value."""
    a, b = ranks(first), ranks(second)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size else float("nan")


def auroc(scores: Floats, effects: Floats) -> float:
    """Return the area under the curve of the sign of the effects; equal scores count one half, effects of 0 are left out.

    NaN without a positive and a negative effect.
    """
    moved = effects != 0
    rank, positive = ranks(scores[moved]), effects[moved] > 0
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return float("nan")
    return float((rank[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def ranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: Floats = (last - (counts - 1) / 2.0)[inverse]
    return mean


def _without_noise(values: Sequence[float | None]) -> Floats:
    """Return values rounded to `_DIGITS` digits of the largest one."""
    array = np.array(values, dtype=np.float64)
    size = float(np.abs(array).max(initial=0.0))
    rounded: Floats = np.round(array / size, _DIGITS) * size if size else array
    return rounded


def _groups(names: Sequence[str]) -> list[Ints]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return [np.array(each, dtype=np.int64) for each in rows.values()]


def _bootstrap(
    statistic: Statistic, scores: Floats, effects: Floats, groups: Sequence[Ints]
) -> Interval | None:
    """Return a statistic with the 2.5 % and 97.5 % quantiles of its bootstrap over groups; None if it has no value."""
    value = statistic(scores, effects) if len(scores) else float("nan")
    if np.isnan(value):
        return None
    if len(groups) < 2:
        return Interval(value, float("-inf"), float("inf"), len(scores))
    generator = np.random.default_rng(stream("bootstrap", "ranking"))
    draws = generator.integers(len(groups), size=(_RESAMPLES, len(groups)))
    resampled = []
    for draw in draws:
        rows = np.concatenate([groups[group] for group in draw])
        resampled.append(statistic(scores[rows], effects[rows]))
    values = np.array([each for each in resampled if not np.isnan(each)])
    if len(values) < _FEWEST:
        return Interval(value, float("-inf"), float("inf"), len(scores))
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(value, float(low), float(high), len(scores))
