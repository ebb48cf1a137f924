"""Intervals of effects cover, whatever the rewards; ranks and areas are those of the definitions."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from ramify.core.draws import stream
from ramify.study.effects import effect_interval
from ramify.study.ranking import auroc, rank_score, ranks, spearman

SHARES = np.arange(21) / 20


def binomial(n):
    """[21][n + 1]: the chance of each number of successes, by share."""
    counts = [math.comb(n, k) for k in range(n + 1)]
    return np.array([[c * p**k * (1 - p) ** (n - k) for k, c in enumerate(counts)] for p in SHARES])


@pytest.mark.parametrize(("samples", "least", "mean"), [(8, 0.91, 0.95), (16, 0.91, 0.95), (32, 0.91, 0.95)])
def test_intervals_of_shares_cover_by_enumeration(samples, least, mean):
    sides = [[1.0] * k + [0.0] * (samples - k) for k in range(samples + 1)]
    bounds = np.array(
        [[(i.low, i.high) for i in (effect_interval(b, a, 0.0, 1.0) for a in sides)] for b in sides]
    )
    chances = binomial(samples)
    coverage = [
        float(
            before
            @ ((bounds[..., 0] <= after_p - before_p + 1e-9) & (after_p - before_p - 1e-9 <= bounds[..., 1]))
            @ after
        )
        for before_p, before in zip(SHARES, chances, strict=True)
        for after_p, after in zip(SHARES, chances, strict=True)
    ]
    assert min(coverage) > least
    assert np.mean(coverage) > mean


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_the_interval_of_a_turn_that_ended_covers_by_enumeration(reward):
    n = 16
    bounds = [effect_interval([1.0] * k + [0.0] * (n - k), reward, 0.0, 1.0) for k in range(n + 1)]
    inside = np.array([[i.low - 1e-9 <= reward - p <= i.high + 1e-9 for i in bounds] for p in SHARES])
    coverage = (binomial(n) * inside).sum(axis=1)
    assert coverage.min() > 0.93
    assert coverage.mean() > 0.96


def test_intervals_of_other_rewards_cover():
    generator, inside, widths = np.random.default_rng(5), 0, []
    rewards = np.array([-1.0, 0.0, 0.4, 1.1])
    for _ in range(2000):
        shares = [generator.dirichlet([0.4] * 4) for _ in range(2)]
        before, after = (generator.choice(rewards, size=16, p=p) for p in shares)
        true = float(shares[1] @ rewards - shares[0] @ rewards)
        interval = effect_interval(before, after, -1.0, 1.1)
        inside += interval.low <= true <= interval.high
        widths.append(interval.high - interval.low)
    assert inside >= 0.95 * 2000
    assert np.mean(widths) < 0.9


def test_equal_rewards_have_an_interval_all_the_same():
    interval = effect_interval([0.0] * 16, [1.0] * 16, 0.0, 1.0)
    assert (interval.value, interval.high) == (1.0, 1.0)
    assert 0.6 < interval.low < 0.9
    assert effect_interval([0.3, 0.3], [0.3, 0.3], 0.3, 0.3).low == 0.0


def test_ranks_and_areas_are_those_of_the_definitions():
    generator = np.random.default_rng(1)
    for _ in range(20):
        scores, effects = generator.integers(5, size=30).astype(float), generator.normal(size=30).round(1)
        assert list(ranks(scores)) == [
            np.mean([1 + i for i, v in enumerate(sorted(scores)) if v == score]) for score in scores
        ]
        ups, downs = scores[effects > 0], scores[effects < 0]
        wins = np.mean([(u > d) + 0.5 * (u == d) for u in ups for d in downs])
        assert auroc(scores, effects) == pytest.approx(wins)
    assert spearman(np.array([1.0, 2, 3]), np.array([10.0, 20, 90])) == pytest.approx(1)
    assert math.isnan(spearman(np.ones(3), np.arange(3.0)))
    assert math.isnan(auroc(np.arange(3.0), np.ones(3)))


def test_means_of_equal_numbers_are_ties():
    """The mean of three times 0.1 is not 0.1 in the last bit."""
    third = float(np.mean([0.1] * 3))
    assert third != 0.1
    ranking = rank_score("a", [0.1, third, 0.1], [1.0, -1.0, third - 0.1], [True] * 3, ["p", "q", "r"])
    assert ranking.auroc.value == 0.5
    assert ranking.spearman is None


def test_ranks_do_not_depend_on_the_size_of_an_outlier():
    generator = np.random.default_rng(3)
    scores, effects = generator.normal(size=30), generator.normal(size=30)
    problems = [f"{i}" for i in range(30)]
    rankings = []
    for sentinel in (-10.0, -1e13):
        low = np.where(scores < -1, -sentinel * scores, scores)
        rankings.append(rank_score("a", low, effects, [True] * 30, problems))
    assert rankings[0] == rankings[1]


@pytest.mark.parametrize(("positives", "negatives"), [(14, 2), (12, 6), (30, 30)])
def test_intervals_of_an_auroc_cover_it_also_where_one_sign_is_rare(positives, negatives):
    """The bootstrap's covered in .53 of the cases with two negative effects."""
    generator, true = np.random.default_rng(4), 0.92
    shift = NormalDist().inv_cdf(true) * math.sqrt(2)
    signs = np.repeat([1.0, -1.0], [positives, negatives])
    problems = [f"{i}" for i in range(len(signs))]
    inside = 0
    for _ in range(400):
        scores = generator.normal(size=len(signs)) + shift * (signs > 0)
        interval = _auroc_of(scores, signs, problems)
        inside += interval.low <= true <= interval.high
    assert inside >= 0.93 * 400
    # Copies of a decision within its problem are no evidence.
    copied = _auroc_of(np.repeat(scores, 5), np.repeat(signs, 5), np.repeat(problems, 5))
    assert (copied.value, copied.low, copied.high) == pytest.approx(
        (interval.value, interval.low, interval.high)
    )


def _auroc_of(scores, effects, problems):
    interval = rank_score("a", scores, effects, [True] * len(scores), problems).auroc
    assert 0 <= interval.low <= interval.value <= interval.high <= 1
    return interval


def test_the_bootstrap_is_over_problems():
    """Copies of a decision within its problem are no evidence."""
    generator = np.random.default_rng(stream("few"))
    scores = generator.normal(size=40)
    effects = scores + generator.normal(size=40)
    alone = rank_score("a", scores, effects, [True] * 40, [f"{i}" for i in range(40)])
    copied = rank_score(
        "a", np.repeat(scores, 9), np.repeat(effects, 9), [True] * 360, [f"{i // 9}" for i in range(360)]
    )
    width, wide = (each.spearman.high - each.spearman.low for each in (alone, copied))
    assert wide == pytest.approx(width, rel=0.15)
    assert alone.spearman.low < alone.spearman.value < alone.spearman.high
    single = rank_score("a", scores, effects, [True] * 40, ["p"] * 40).spearman
    assert (single.value, math.isinf(single.low), math.isinf(single.high)) == (
        alone.spearman.value,
        True,
        True,
    )
    assert rank_score("a", [None, 1.0], [1.0, 1.0], [True, True], ["p", "q"]).spearman is None
