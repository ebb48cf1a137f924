"""Confidence intervals over problems."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.core.draws import stream

NUM_RESAMPLES = 2000
_CHUNK = 100


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` problems with the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float
    n: int


def bootstrap_mean(per_problem: Sequence[float], seed: int) -> Interval:
    """95 % percentile bootstrap of a mean over problems (Efron 1979), from 2,000 resamples.

    `per_problem` holds one number a problem: its pass@k, or the mean over its samples. Samples of one problem
    are not independent, so whole problems are resampled. The interval is a little short below about 30 problems
    and has no width when all problems score the same.

    Raises:
        ValueError: No problem at all.
    """
    values = np.asarray(per_problem, np.float64)
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one problem")
    generator = np.random.default_rng(stream("bootstrap", seed))
    means = np.concatenate(
        [values[generator.integers(n, size=(_CHUNK, n))].mean(axis=1) for _ in range(NUM_RESAMPLES // _CHUNK)]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high), n)
