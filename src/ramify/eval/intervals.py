"""95 % confidence intervals over problems."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import mpmath
import numpy as np

from ramify.core.draws import stream

NUM_RESAMPLES = 2000
_CHUNK = 100
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` problems with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float
    n: int


def mean_interval(per_problem: Sequence[float], seed: int) -> Interval:
    """The mean of a score over problems: Wilson's interval if every problem's score is 0 or 1, else the bootstrap.

    `per_problem` holds one number for each problem: its pass@k, or the mean over its attempts. `benchmarks/evaluation`
    simulates the coverage of both intervals.

    Raises:
        ValueError: There are no problems.
    """
    if set(per_problem) <= {0.0, 1.0}:
        return wilson_share(sum(per_problem), len(per_problem))
    return bootstrap_mean(per_problem, seed)


def wilson_share(successes: float, n: int) -> Interval:
    """The score interval of a share (Wilson 1927); its width is above 0 even if all problems are correct, or none.

    Raises:
        ValueError: There are no problems.
    """
    if n == 0:
        raise ValueError("an interval needs at least one problem")
    share = successes / n
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    # At shares of 0 and 1 one bound equals the share, except for rounding.
    return Interval(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)), n)


def bootstrap_mean(per_problem: Sequence[float], seed: int) -> Interval:
    """The expanded percentile bootstrap of a mean over problems (Hesterberg 2015, section 4.1), from 2,000 resamples.

    Attempts at one problem are not independent, so whole problems are resampled. With few problems, plain percentiles
    give too narrow an interval: their spread lacks the factor sqrt(n / (n - 1)), and they correspond to normal
    quantiles instead of Student's t. The expanded percentiles correct both. One problem, or equal scores, give a width
    of 0.

    Raises:
        ValueError: There are no problems.
    """
    values = np.asarray(per_problem, np.float64)
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one problem")
    generator = np.random.default_rng(stream("bootstrap", seed))
    means = np.concatenate(
        [values[generator.integers(n, size=(_CHUNK, n))].mean(axis=1) for _ in range(NUM_RESAMPLES // _CHUNK)]
    )
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * _student_t(n - 1)) if n > 1 else 0.025
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high), n)


@functools.cache
def _student_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""

    def excess(t: mpmath.mpf) -> mpmath.mpf:
        return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True) - 0.05

    return float(mpmath.findroot(excess, (1.5, 15.0), solver="anderson"))
