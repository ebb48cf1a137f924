"""Rank correlation and AUROC of scores against effects, with intervals that count problems, not decisions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramify.core.draws import stream
from ramify.core.records import Floats, Ints
from ramify.eval.statistics import Interval, auroc_interval

_RESAMPLES = 500
_FEWEST = 100
"""Resamples with a value that an interval needs."""
_NOISE = 1e-12
"""Share of their size by which values differ that are equal but for rounding."""


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

    Decisions of a problem share trajectories, so a bootstrap of the correlation resamples problems, and the interval of an AUROC
    counts those that have a positive effect, and those that have a negative one.
    """
    rows = [row for row, score in enumerate(scores) if score is not None]
    # Means of equal numbers differ in the last bit by how many there are, which would break their ties.
    score, effect = (_without_noise([values[row] for row in rows]) for values in (scores, effects))
    sure = np.array([is_sure[row] for row in rows], dtype=np.bool_)
    of = np.array([problems[row] for row in rows])
    return Ranking(
        name,
        len(rows),
        _bootstrap(score, effect, [np.flatnonzero(of == problem) for problem in dict.fromkeys(of)]),
        _auroc_interval(score, effect, of),
        _auroc_interval(score[sure], effect[sure], of[sure]),
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
    """Return values in the same order, of which those are equal that differ by rounding, whatever the size of the others."""
    array: Floats = np.array(values, dtype=np.float64)
    largest = np.abs(array).max(initial=0.0)
    if not largest or not np.isfinite(largest):
        return array
    # Ranks and signs stay as they are, and no sum of large numbers overflows.
    array = array / largest
    sizes = np.abs(array)
    # What is 0 but for rounding, beside values of a usual size: of the half, since a few may be huge.
    usual = max(min(1.0, 1.0 / largest), np.median(sizes[sizes > 0]))
    array[sizes <= _NOISE * usual] = 0.0
    order = np.argsort(array, kind="stable")
    ordered = array[order]
    gaps = np.diff(ordered) > _NOISE * np.maximum(np.abs(ordered[1:]), np.abs(ordered[:-1]))
    # Each gets the first value of its run of equal ones.
    first = np.concatenate([[0], np.cumsum(gaps)]).astype(np.int64) if len(array) else order
    array[order] = ordered[np.searchsorted(first, first)]
    return array


def _auroc_interval(scores: Floats, effects: Floats, problems: Any) -> Interval | None:  # noqa: ANN401 - an array of names
    """Return the AUROC; None without a positive and a negative effect."""
    value = auroc(scores, effects)
    if np.isnan(value):
        return None
    ups, downs = (len(set(problems[each])) for each in (effects > 0, effects < 0))
    return replace(auroc_interval(value, ups, downs), n=len(scores))


def _bootstrap(scores: Floats, effects: Floats, groups: Sequence[Ints]) -> Interval | None:
    """Return the rank correlation with the 2.5 % and 97.5 % quantiles of its bootstrap over groups; None if it has no value."""
    value = spearman(scores, effects) if len(scores) else float("nan")
    if np.isnan(value):
        return None
    if len(groups) < 2:
        return Interval(value, float("-inf"), float("inf"), len(scores))
    generator = np.random.default_rng(stream("bootstrap", "ranking"))
    draws = generator.integers(len(groups), size=(_RESAMPLES, len(groups)))
    resampled = []
    for draw in draws:
        rows = np.concatenate([groups[group] for group in draw])
        resampled.append(spearman(scores[rows], effects[rows]))
    values = np.array([each for each in resampled if not np.isnan(each)])
    if len(values) < _FEWEST:
        return Interval(value, float("-inf"), float("inf"), len(scores))
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(value, float(low), float(high), len(scores))
