"""Intervals cover the truth as often as they say."""

import math

import numpy as np
import pytest

from ramify.eval.intervals import bootstrap_mean, mean_interval, wilson_share


def test_same_seed_same_interval_and_other_seed_another():
    values = [0.0, 1.0, 0.25, 0.5] * 20
    assert mean_interval(values, 3) == mean_interval(values, 3) == bootstrap_mean(values, 3)
    assert mean_interval(values, 3) != mean_interval(values, 4)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    # Wilson (1927), by the formula; 0 of 4 and 10 of 10 have a width too.
    [(0, 4, 0.0, 0.4899), (10, 10, 0.7225, 1.0), (240, 500, 0.4365, 0.5238), (1, 1, 0.2065, 1.0)],
)
def test_scores_of_zero_and_one_have_wilsons_interval(right, n, low, high):
    found = mean_interval([1.0] * right + [0.0] * (n - right), 0)
    assert found == wilson_share(right, n)
    assert (found.value, found.n) == (right / n, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_the_bootstrap_of_many_problems_has_the_width_of_the_normal_approximation():
    values = [0.75] * 240 + [0.25] * 260
    found = mean_interval(values, 0)
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(500)
    assert found.high - found.value == pytest.approx(half, rel=0.1)
    assert found.value - found.low == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize(("n", "tail"), [(4, 0.0001), (30, 0.0188)])
def test_few_problems_take_percentiles_further_out(n, tail):
    """Hesterberg (2015), section 4.1: Phi(-sqrt(n / (n - 1)) t) for n = 4 and 30."""
    values = np.random.default_rng(1).random(n)
    resampled = np.random.default_rng(2).choice(values, size=(200_000, n)).mean(axis=1)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    found = bootstrap_mean(values.tolist(), 0)
    width = high - low
    assert (found.low, found.high) == (pytest.approx(low, abs=width / 6), pytest.approx(high, abs=width / 6))


@pytest.mark.parametrize("attempts", [1, 4])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("n", [4, 30, 200])
def test_coverage(n, share, attempts):
    generator = np.random.default_rng(20)
    trials = 200
    hits = 0
    for trial in range(trials):
        found = mean_interval((generator.binomial(attempts, share, n) / attempts).tolist(), trial)
        hits += found.low <= share <= found.high
    # 4 problems of one attempt at 0.5: Wilson's interval leaves out 0 and 4 right, so it covers 0.875.
    assert hits / trials >= (0.83 if n == 4 else 0.90)


def test_all_equal_between_the_ends_has_no_width():
    found = mean_interval([0.5] * 40, 0)
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)


def test_one_problem_between_the_ends_has_no_width():
    assert mean_interval([0.25], 0).low == mean_interval([0.25], 0).high == 0.25


@pytest.mark.parametrize("interval", [lambda: mean_interval([], 0), lambda: bootstrap_mean([], 0)])
def test_no_problem_is_refused(interval):
    with pytest.raises(ValueError, match="at least one problem"):
        interval()
