"""Bootstrap intervals: they cover the truth as often as they say."""

import math

import numpy as np
import pytest

from ramify.eval.intervals import bootstrap_mean


def test_same_seed_same_interval_and_other_seed_another():
    values = [0.0, 1.0, 0.25, 0.5] * 20
    assert bootstrap_mean(values, 3) == bootstrap_mean(values, 3)
    assert bootstrap_mean(values, 3) != bootstrap_mean(values, 4)


def test_width_is_that_of_the_normal_approximation():
    values = [1.0] * 240 + [0.0] * 260
    interval = bootstrap_mean(values, 0)
    assert (interval.value, interval.n) == (0.48, 500)
    half = 1.96 * math.sqrt(0.48 * 0.52 / 500)
    assert interval.high - interval.value == pytest.approx(half, rel=0.1)
    assert interval.value - interval.low == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize(("share", "n"), [(0.5, 30), (0.8, 60), (0.3, 100)])
def test_coverage_of_success_shares(share, n):
    generator = np.random.default_rng(20)
    trials = 400
    hits = 0
    for trial in range(trials):
        interval = bootstrap_mean((generator.random(n) < share).astype(float).tolist(), trial)
        hits += interval.low <= share <= interval.high
    assert 0.90 <= hits / trials <= 0.985


def test_all_equal_has_no_width():
    interval = bootstrap_mean([1.0] * 40, 0)
    assert (interval.low, interval.value, interval.high) == (1.0, 1.0, 1.0)


def test_no_problem_is_refused():
    with pytest.raises(ValueError, match="at least one problem"):
        bootstrap_mean([], 0)
