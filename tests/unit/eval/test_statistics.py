"""Statistics of an evaluation: intervals, pass@k, paired comparisons, agreement with a judge."""

import itertools
import math
import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.eval.statistics import (
    bootstrap_mean,
    calibration_error,
    holm,
    holm_levels,
    judge_agreement,
    kappa,
    mean_interval,
    paired_difference,
    paired_t,
    pairs_needed,
    pass_at_k,
    wilson_share,
)


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
    interval = mean_interval([1.0] * right + [0.0] * (n - right), 0)
    assert interval == wilson_share(right, n)
    assert (interval.value, interval.n) == (right / n, n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_the_bootstrap_of_many_problems_has_the_width_of_the_normal_approximation():
    values = [0.75] * 240 + [0.25] * 260
    interval = mean_interval(values, 0)
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(500)
    assert interval.high - interval.value == pytest.approx(half, rel=0.1)
    assert interval.value - interval.low == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize(("n", "tail"), [(4, 0.0001), (30, 0.0188)])
def test_few_problems_take_percentiles_further_out(n, tail):
    """Hesterberg (2015), section 4.1: Phi(-sqrt(n / (n - 1)) t) for n = 4 and 30."""
    values = np.random.default_rng(1).random(n)
    resampled = np.random.default_rng(2).choice(values, size=(200_000, n)).mean(axis=1)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    interval = bootstrap_mean(values.tolist(), 0)
    width = high - low
    assert (interval.low, interval.high) == (
        pytest.approx(low, abs=width / 6),
        pytest.approx(high, abs=width / 6),
    )


@pytest.mark.parametrize("attempts", [1, 4])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("n", [4, 30, 200])
def test_coverage(n, share, attempts):
    generator = np.random.default_rng(20)
    trials = 200
    hits = 0
    for trial in range(trials):
        interval = mean_interval((generator.binomial(attempts, share, n) / attempts).tolist(), trial)
        hits += interval.low <= share <= interval.high
    # 4 problems of one attempt at 0.5: Wilson's interval leaves out 0 and 4 right, so it covers 0.875.
    assert hits / trials >= (0.83 if n == 4 else 0.90)


def test_all_equal_between_the_ends_has_no_width():
    interval = mean_interval([0.5] * 40, 0)
    assert (interval.low, interval.value, interval.high) == (0.5, 0.5, 0.5)


def test_one_problem_between_the_ends_has_no_width():
    assert mean_interval([0.25], 0).low == mean_interval([0.25], 0).high == 0.25


def by_hand(differences):
    """Share of all sign flips with a sum at least as far from zero."""
    observed = abs(sum(differences))
    flips = itertools.product((-1, 1), repeat=len(differences))
    extreme = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed - 1e-12
        for signs in flips
    ]
    return sum(extreme) / len(extreme)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=10))
def test_mcnemar_is_the_sign_flip_test_of_single_attempts(differences):
    difference = paired_difference([0.0] * len(differences), differences, 0)
    assert difference.method == "mcnemar"
    assert difference.p_value == pytest.approx(by_hand(differences), abs=1e-12)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.25, 0.75]), min_size=1, max_size=9))
def test_few_problems_are_tested_exactly(differences):
    difference = paired_difference([0.0] * len(differences), differences, 0)
    assert difference.p_value == pytest.approx(by_hand(differences), abs=1e-12)


def test_many_problems_are_tested_by_drawing_and_that_is_close_to_exact():
    generator = np.random.default_rng(3)
    differences = generator.choice([-0.75, -0.25, 0.25, 0.5, 0.75], 16)
    difference = paired_difference([0.0] * 16, differences.tolist(), 0)
    assert difference.method == "permutation_sampled"
    assert difference.p_value == pytest.approx(by_hand(differences.tolist()), abs=0.015)
    assert difference == paired_difference([0.0] * 16, differences.tolist(), 0)


@pytest.mark.parametrize(("moved", "low", "high"), [(0.0, -0.176, 0.176), (1.0, 0.824, 1.0)])
def test_equal_differences_on_few_problems_are_not_certain(moved, low, high):
    difference = paired_difference([0.0] * 18, [moved] * 18, 0)
    assert (difference.value, difference.low, difference.high) == pytest.approx((moved, low, high), abs=1e-3)


def attempts(generator, chances, count):
    return generator.binomial(count, chances) / count


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.integration)])
def test_a_planted_difference_is_found_and_an_absent_one_is_not(count):
    generator = np.random.default_rng(7)
    trials, problems, planted = 150, 200, 0.15
    detected, false, covered = 0, 0, 0
    for trial in range(trials):
        chances = generator.beta(1, 1, problems) * (1 - planted)
        first = attempts(generator, chances, count).tolist()
        better = paired_difference(first, attempts(generator, chances + planted, count).tolist(), trial)
        same = paired_difference(first, attempts(generator, chances, count).tolist(), trial)
        detected += better.p_value < 0.05
        false += same.p_value < 0.05
        covered += (better.low <= planted <= better.high) + (same.low <= 0 <= same.high)
    assert detected / trials > 0.85
    assert false / trials <= 0.09
    assert 0.91 <= covered / (2 * trials) <= 0.99


def test_pairing_sees_what_separate_intervals_do_not():
    generator = np.random.default_rng(1)
    hard = generator.random(300) < 0.5
    first = np.where(hard, 0.0, 1.0)
    second = np.where(generator.random(300) < 0.1, 1.0, first)
    difference = paired_difference(first.tolist(), second.tolist(), 0)
    assert difference.p_value < 0.05
    assert difference.low > 0
    assert difference.worse == 0 < difference.better


@pytest.mark.parametrize("moved", [2.2, 1.0, -1.6])
def test_equal_differences_of_rewards_lie_in_their_interval(moved):
    """Rewards are no shares: the interval ended at 1, below a difference of 2.2."""
    difference = paired_difference([0.0] * 3, [moved] * 3, 0)
    assert difference.low <= difference.value <= difference.high
    assert difference.high - difference.low > 0.3


def test_differences_that_are_equal_but_for_rounding_are_not_certain():
    """2/3 - 1/3 is not 1 - 2/3: with three attempts the interval had no width."""
    difference = paired_difference([1 / 3, 2 / 3, 0.0], [2 / 3, 1.0, 1 / 3], 0)
    assert difference.high - difference.low > 0.3


def test_equal_models_do_not_differ():
    difference = paired_difference([1.0, 0.0, 0.5], [1.0, 0.0, 0.5], 0)
    assert (difference.value, difference.p_value) == (0.0, 1.0)
    assert difference.low == -difference.high < 0


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    # The second step is the one at which it stops: 2 times 0.03 is above 0.05.
    assert holm_levels([0.001, 0.04, 0.03]) == pytest.approx([0.05 / 3, 0.025, 0.025])
    assert holm_levels([0.02, 0.024]) == pytest.approx([0.025, 0.05])


@given(st.data())
def test_equals_brute_force(data):
    n = data.draw(st.integers(1, 9))
    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    draws = list(combinations([index < correct for index in range(n)], k))
    expected = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k(n, correct, k) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_pass_at_1_is_the_share_and_ends_are_exact(n, share, k_share):
    correct, k = round(share * n), max(1, min(1000, round(k_share * n)))
    assert pass_at_k(n, correct, 1) == pytest.approx(correct / n, abs=1e-12)
    assert pass_at_k(n, 0, k) == 0.0
    assert pass_at_k(n, n, k) == 1.0
    assert 0.0 <= pass_at_k(n, correct, k) <= 1.0


def test_large_numbers_keep_their_digits():
    assert pass_at_k(10**6, 1, 10**3) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize(("n", "k"), [(4, 5), (4, 0), (0, 1)])
def test_a_k_beyond_the_samples_is_refused(n, k):
    with pytest.raises(ValueError, match=f"pass@{k} needs"):
        pass_at_k(n, 0, k)


def textbook_kappa(pairs):
    """Cohen (1960), equation 1, with shares counted one by one."""
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    chance = sum((sum(a == c for a, _ in pairs) / n) * (sum(b == c for _, b in pairs) / n) for c in (0, 1))
    return (observed - chance) / (1 - chance)


def test_cohens_example_of_fifty():
    assert kappa(both_right=20, judge_only=5, score_only=10, both_wrong=15) == pytest.approx(0.4)


@pytest.mark.parametrize("seed", range(20))
def test_kappa_is_the_textbooks(seed):
    draw = random.Random(seed)
    pairs = [(0, 1), (1, 0), *((draw.randrange(2), draw.randrange(2)) for _ in range(draw.randrange(1, 40)))]
    table = judge_agreement([{"judge": float(judge), "em": float(score)} for judge, score in pairs])["em"]
    assert table["kappa"] == pytest.approx(textbook_kappa(pairs))
    assert table["rate"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))


def test_the_table_of_each_score():
    parts = [
        {"judge": 1.0, "em": 1.0, "f1": 1.0},
        {"judge": 1.0, "em": 0.0, "f1": 0.5},
        {"judge": 0.0, "em": 0.0, "f1": 0.49},
        {"judge": 0.0, "em": 1.0, "f1": 1.0},
        {"em": 1.0, "f1": 1.0},
        {"judge": 1.0},
    ]
    tables = judge_agreement(parts)
    assert tables.keys() == {"em", "f1"}
    assert tables["em"] == {
        "right_from": 1.0, "n": 4, "without_verdict": 1, "both_right": 1, "judge_only": 1, "score_only": 1,
        "both_wrong": 1, "rate": 0.5, "kappa": 0.0,
    }  # fmt: skip
    cells = [tables["f1"][name] for name in ("both_right", "judge_only", "score_only", "both_wrong")]
    assert cells == [2, 0, 1, 1]


def test_what_cannot_be_said_is_none():
    assert judge_agreement([]) == {}
    unjudged = judge_agreement([{"em": 1.0}, {"em": 0.0}])["em"]
    assert (unjudged["n"], unjudged["rate"], unjudged["kappa"], unjudged["without_verdict"]) == (
        0,
        None,
        None,
        2,
    )
    all_right = judge_agreement([{"em": 1.0, "judge": 1.0}] * 3)["em"]
    assert (all_right["rate"], all_right["kappa"]) == (1.0, None)


def test_calibration_is_that_of_bins_of_a_hundred() -> None:
    assert calibration_error([0.9, 0.9], [True, False]) == pytest.approx(0.4)
    # Two bins: a hundred answers without confidence that are right by half, and 150 sure ones, of which the last 50 join them.
    stated = [0.0] * 100 + [1.0] * 150
    right = [index % 2 == 0 for index in range(100)] + [True] * 150
    assert calibration_error(stated, right) == pytest.approx((100 * 0.25 / 250) ** 0.5)
    assert calibration_error(stated[::-1], right[::-1]) == pytest.approx(calibration_error(stated, right))


def test_the_paired_t_test_of_students_own_data():
    """Hours of sleep that ten patients gained by one drug over the other (Student 1908, as in R's `t.test` of `sleep`)."""
    result = paired_t([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert (result.value, result.n) == (pytest.approx(1.58), 10)
    assert (result.low, result.high) == (pytest.approx(0.7001142), pytest.approx(2.4598858))
    assert (result.sd, result.p_value) == (pytest.approx(1.229995), pytest.approx(0.00283289))
    # One degree of freedom, where the quantile of 99.9 % is 636.6.
    wide = paired_t([0.0, 1.0], 0.001)
    assert (wide.low, wide.high) == (pytest.approx(0.5 - 318.3096), pytest.approx(0.5 + 318.3096))


@pytest.mark.parametrize("differences", [[0.5, 0.5], [0.0, 0.0, 0.0], [0.3 - 0.2, 0.2 - 0.1, 0.1]])
def test_equal_differences_say_nothing_about_their_spread(differences):
    result = paired_t(differences)
    assert result.value == pytest.approx(differences[-1])
    assert (result.low, result.high, result.sd, result.p_value) == (-math.inf, math.inf, 0.0, 1.0)


def test_one_difference_has_no_interval():
    with pytest.raises(ValueError, match="at least 2 pairs, got 1"):
        paired_t([0.1])


@pytest.mark.parametrize(
    ("sd", "difference", "alpha", "n"),
    # Of the exact noncentral t: standardized differences of 0.5, 0.8 and 1 need 34, 15 and 10 pairs.
    [(0.01, 0.005, 0.05, 34), (1.0, 0.8, 0.05, 15), (1.0, 1.0, 0.05, 10), (0.001, 1.0, 0.05, 2)],
)
def test_the_number_of_pairs_that_a_difference_needs(sd, difference, alpha, n):
    assert pairs_needed(sd, difference, alpha) == n
    assert pairs_needed(sd, difference, alpha / 3) >= n
