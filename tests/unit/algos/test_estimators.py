import numpy as np
import pytest

from ramify.algos.arpo import ArpoEstimator
from ramify.algos.grpo import GroupRelative
from ramify.core.records import Reward
from ramify.core.tree import Source
from random_trees import node, tree_of


def forked():
    """Root 0 ends in two leaves, root 1 in one: masses 1/2, 1/2, 1."""
    return tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            node((0, 0, 0), Source.POLICY, [3, 3], leaf=True),
            node((0, 0, 1), Source.POLICY, [3], leaf=True),
            node((1,), Source.POLICY, [1], leaf=True),
        ]
    )


def flat(size):
    roots = [node((i,), Source.POLICY, [1] * (i + 1), leaf=True) for i in range(size)]
    return tree_of([node((), Source.PROMPT, [5]), *roots])


def rewards(*values):
    return [Reward(value, {}) for value in values]


ESTIMATORS = [GroupRelative(), ArpoEstimator("repeat"), ArpoEstimator("split"), ArpoEstimator("mass")]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_flat_groups_get_the_published_advantage_on_each_written_token(estimator):
    values = np.array([1.1, 0.0, -1.0, 0.4])
    arrays = estimator.advantages(flat(4), rewards(*values), estimator.moments([], []))
    assert [len(a) for a in arrays] == [1, 2, 3, 4]
    expected = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    for array, value in zip(arrays, expected, strict=True):
        assert array == pytest.approx([value] * len(array), rel=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_groups_of_one_or_of_equal_rewards_have_exactly_no_advantage(estimator):
    assert not estimator.advantages(flat(1), rewards(0.7), {})[0].any()
    assert not any(a.any() for a in estimator.advantages(flat(3), rewards(0.1, 0.1, 0.1), {}))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_permuting_leaves_permutes_advantages(estimator):
    one = [a[0] for a in estimator.advantages(flat(3), rewards(1, 0, 0.5), {})]
    other = [a[0] for a in estimator.advantages(flat(3), rewards(0.5, 1, 0), {})]
    assert other == pytest.approx([one[2], one[0], one[1]])


def test_pooled_arpo_counts_leaves_alike():
    arrays = ArpoEstimator("repeat").advantages(forked(), rewards(1, 0, 0), {})
    assert [a[0] for a in arrays] == pytest.approx(
        np.array([2, -1, -1]) / 3 / np.std([1, 0, 0], ddof=1), rel=1e-5
    )
    assert [len(a) for a in arrays] == [4, 3, 1]


def test_mass_weighs_the_baseline_and_the_spread():
    arrays = ArpoEstimator("mass").advantages(forked(), rewards(1, 0, 0), {})
    mean = 0.5 / 2
    variance = (0.5 * 0.75**2 + 0.5 * 0.25**2 + 1 * 0.25**2) / (2 - 1.5 / 2)
    expected = (np.array([1, 0, 0]) - mean) / np.sqrt(variance)
    assert [a[0] for a in arrays] == pytest.approx(expected, rel=1e-5)
