"""The paired comparison: exact where it says so, finds what is there and nothing else, and its intervals cover."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.eval.paired import holm, paired_difference


def by_hand(differences):
    """Share of all sign flips with a sum at least as far from zero."""
    seen = abs(sum(differences))
    flips = itertools.product((-1, 1), repeat=len(differences))
    extreme = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= seen - 1e-12 for signs in flips
    ]
    return sum(extreme) / len(extreme)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=10))
def test_mcnemar_is_the_sign_flip_test_of_single_attempts(differences):
    found = paired_difference([0.0] * len(differences), differences, 0)
    assert found.method == "mcnemar"
    assert found.p_value == pytest.approx(by_hand(differences), abs=1e-12)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.25, 0.75]), min_size=1, max_size=9))
def test_few_problems_are_tested_exactly(differences):
    found = paired_difference([0.0] * len(differences), differences, 0)
    assert found.p_value == pytest.approx(by_hand(differences), abs=1e-12)


def test_many_problems_are_tested_by_drawing_and_that_is_close_to_exact():
    generator = np.random.default_rng(3)
    differences = generator.choice([-0.75, -0.25, 0.25, 0.5, 0.75], 16)
    found = paired_difference([0.0] * 16, differences.tolist(), 0)
    assert found.method == "permutation_sampled"
    assert found.p_value == pytest.approx(by_hand(differences.tolist()), abs=0.015)
    assert found == paired_difference([0.0] * 16, differences.tolist(), 0)


@pytest.mark.parametrize(("moved", "low", "high"), [(0.0, -0.176, 0.176), (1.0, 0.824, 1.0)])
def test_equal_differences_on_few_problems_are_not_certain(moved, low, high):
    found = paired_difference([0.0] * 18, [moved] * 18, 0)
    assert (found.value, found.low, found.high) == pytest.approx((moved, low, high), abs=1e-3)


def attempts(generator, chances, count):
    return generator.binomial(count, chances) / count


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.integration)])
def test_a_planted_difference_is_found_and_an_absent_one_is_not(count):
    generator = np.random.default_rng(7)
    trials, problems, planted = 150, 200, 0.15
    found, false, covered = 0, 0, 0
    for trial in range(trials):
        chances = generator.beta(1, 1, problems) * (1 - planted)
        first = attempts(generator, chances, count).tolist()
        better = paired_difference(first, attempts(generator, chances + planted, count).tolist(), trial)
        same = paired_difference(first, attempts(generator, chances, count).tolist(), trial)
        found += better.p_value < 0.05
        false += same.p_value < 0.05
        covered += (better.low <= planted <= better.high) + (same.low <= 0 <= same.high)
    assert found / trials > 0.85
    assert false / trials <= 0.09
    assert 0.91 <= covered / (2 * trials) <= 0.99


def test_pairing_sees_what_separate_intervals_do_not():
    generator = np.random.default_rng(1)
    hard = generator.random(300) < 0.5
    first = np.where(hard, 0.0, 1.0)
    second = np.where(generator.random(300) < 0.1, 1.0, first)
    found = paired_difference(first.tolist(), second.tolist(), 0)
    assert found.p_value < 0.05
    assert found.low > 0
    assert found.worse == 0 < found.better


def test_equal_models_do_not_differ():
    found = paired_difference([1.0, 0.0, 0.5], [1.0, 0.0, 0.5], 0)
    assert (found.value, found.p_value) == (0.0, 1.0)
    assert found.low == -found.high < 0


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])


def test_what_is_no_pair_is_refused():
    with pytest.raises(ValueError, match="one of each for every problem"):
        paired_difference([1.0], [1.0, 0.0], 0)
