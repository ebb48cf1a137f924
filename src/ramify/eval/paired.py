"""Paired comparison of two models on the same problems: mean difference, interval and significance test."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramify.core.draws import stream
from ramify.core.records import Floats
from ramify.eval.intervals import bootstrap_mean, wilson_share

_MAX_ENUMERATED = 14
_DRAWS = 20_000
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first, a mean over problems.

    Attributes:
        first, second: Means over the n problems.
        value, low, high: Their difference and its 95 % bootstrap interval, from resampling pairs of scores.
        p_value: Two-sided p-value of the hypothesis that the two scores of each problem are exchangeable.
        method: "mcnemar" (exact; used if all nonzero differences have the same size, as with single attempts),
            "permutation" (exact, all signs) or "permutation_sampled" (20,000 random draws of the signs).
        n: Number of problems.
        better, worse: Number of problems on which the second is better, worse.
    """

    first: float
    second: float
    value: float
    low: float
    high: float
    p_value: float
    method: Literal["mcnemar", "permutation", "permutation_sampled"]
    n: int
    better: int
    worse: int


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int) -> Difference:
    """Compare two lists of scores of the same problems, in the same order.

    Uses McNemar's test (1947) in its exact, binomial form where it applies, else Fisher's sign-flip test.

    Raises:
        ValueError: There are no problems, or the lists differ in length.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} scores against {len(second)}: expected one of each for every problem")
    left, right = np.asarray(first, np.float64), np.asarray(second, np.float64)
    differences = right - left
    interval = bootstrap_mean(differences.tolist(), seed)
    low, high = interval.low, interval.high
    if low == high:
        # Equal differences on n problems say little about the other problems (Wilson's bound for 0 of n).
        most = wilson_share(0, len(differences)).high
        low, high = max(low - most, -1.0), min(high + most, 1.0)
    # 1e-12: means of the same attempts in another order may differ in the last bit.
    moved = differences[np.abs(differences) > 1e-12]
    better, worse = int((moved > 0).sum()), int((moved < 0).sum())
    p_value, method = _test(moved, better, seed)
    return Difference(
        float(left.mean()),
        float(right.mean()),
        interval.value,
        low,
        high,
        p_value,
        method,
        len(left),
        better,
        worse,
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p-values of several comparisons to control the family-wise error rate (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def _test(
    moved: Floats, better: int, seed: int
) -> tuple[float, Literal["mcnemar", "permutation", "permutation_sampled"]]:
    sizes = np.abs(moved)
    if not len(moved) or np.allclose(sizes, sizes[0], rtol=1e-9, atol=0):
        return _binomial(min(better, len(moved) - better), len(moved)), "mcnemar"
    seen = abs(float(moved.sum())) * (1 - 1e-12)
    if len(moved) <= _MAX_ENUMERATED:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(moved))))
        return float((np.abs(signs @ sizes) >= seen).mean()), "permutation"
    generator = np.random.default_rng(stream("sign flips", seed))
    extreme = 0
    for _ in range(_DRAWS // _CHUNK):
        signs = generator.integers(2, size=(_CHUNK, len(moved))) * 2.0 - 1.0
        extreme += int((np.abs(signs @ sizes) >= seen).sum())
    # The observed signs count as one of the draws, so that no p-value is 0.
    return (extreme + 1) / (_DRAWS + 1), "permutation_sampled"


def _binomial(fewer: int, n: int) -> float:
    """Probability of at most `fewer` or at least n - `fewer` heads among n fair coins."""
    tail = sum(math.comb(n, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))
