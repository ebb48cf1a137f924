import numpy as np
import pytest

from ramify.algos.grpo import GroupRelative
from ramify.algos.ops import values
from ramify.core.errors import DataError
from ramify.core.records import Reward
from ramify.core.tree import Source
from random_trees import annotated, node, tree_of


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


def rewards(*numbers):
    return [Reward(number, {}) for number in numbers]


def advantages(estimator, tree, *numbers):
    return estimator.advantages(annotated(tree, rewards(*numbers)), ())


SHARED = ["repeat", "split", "mass"]
every_weighting = pytest.mark.parametrize("shared", SHARED)


@every_weighting
def test_flat_groups_get_the_published_advantage_on_each_written_token(shared):
    numbers = np.array([1.1, 0.0, -1.0, 0.4])
    arrays = advantages(GroupRelative(shared), flat(4), *numbers)
    assert [len(a) for a in arrays] == [1, 2, 3, 4]
    expected = (numbers - numbers.mean()) / (numbers.std(ddof=1) + 1e-6)
    for array, value in zip(arrays, expected, strict=True):
        assert array == pytest.approx([value] * len(array), rel=1e-5)


@every_weighting
@pytest.mark.parametrize("baseline", ["pooled", "leave_subtree_out"])
@pytest.mark.parametrize("scale", ["std", "none"])
def test_groups_of_one_or_of_equal_rewards_have_exactly_no_advantage(shared, baseline, scale):
    estimator = GroupRelative(shared, scale=scale, baseline=baseline)
    assert not advantages(estimator, flat(1), 0.7)[0].any()
    assert not any(a.any() for a in advantages(estimator, flat(3), 0.1, 0.1, 0.1))
    assert not any(a.any() for a in advantages(estimator, forked(), 0.1, 0.1, 0.1))


def test_without_scale_the_difference_to_the_mean_is_left():
    arrays = advantages(GroupRelative("repeat", scale="none"), flat(3), 1.0, 0.0, 0.5)
    assert [a[0] for a in arrays] == pytest.approx([0.5, -0.5, 0.0])


def test_leaving_the_subtree_out_of_a_flat_group_is_leaving_one_out():
    numbers = [1.0, 0.0, 0.5, 0.25]
    arrays = advantages(
        GroupRelative("repeat", scale="none", baseline="leave_subtree_out"), flat(4), *numbers
    )
    for i, array in enumerate(arrays):
        others = numbers[:i] + numbers[i + 1 :]
        assert array == pytest.approx([numbers[i] - np.mean(others)] * (i + 1))


def test_each_token_is_compared_with_the_leaves_that_are_not_below_it():
    arrays = advantages(
        GroupRelative("repeat", scale="none", baseline="leave_subtree_out"), forked(), 1.0, 0.0, 0.4
    )
    assert arrays[0] == pytest.approx([1 - 0.4, 1 - 0.4, 1 - 0.2, 1 - 0.2])
    assert arrays[1] == pytest.approx([0 - 0.4, 0 - 0.4, 0 - 0.7])
    assert arrays[2] == pytest.approx([0.4 - 0.5])


def test_by_mass_the_others_weigh_what_their_leaves_weigh():
    arrays = advantages(
        GroupRelative("mass", scale="none", baseline="leave_subtree_out"), forked(), 1.0, 0.0, 0.4
    )
    assert arrays[0][2:] == pytest.approx([1 - (0.5 * 0 + 1 * 0.4) / 1.5] * 2)


def test_a_token_above_all_leaves_has_nothing_to_be_compared_with():
    tree = tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            *(node((0, 0, i), Source.POLICY, [3], leaf=True) for i in range(2)),
        ]
    )
    arrays = advantages(GroupRelative("repeat", scale="none", baseline="leave_subtree_out"), tree, 1.0, 0.0)
    assert [a.tolist() for a in arrays] == [[0, 0, 1], [0, 0, -1]]


def test_the_pooled_baseline_counts_leaves_alike():
    arrays = advantages(GroupRelative("repeat"), forked(), 1, 0, 0)
    assert [a[0] for a in arrays] == pytest.approx(
        np.array([2, -1, -1]) / 3 / np.std([1, 0, 0], ddof=1), rel=1e-5
    )
    assert [len(a) for a in arrays] == [4, 3, 1]


def test_mass_weighs_the_baseline_and_the_spread():
    arrays = advantages(GroupRelative("mass"), forked(), 1, 0, 0)
    mean = 0.5 / 2
    variance = (0.5 * 0.75**2 + 0.5 * 0.25**2 + 1 * 0.25**2) / (2 - 1.5 / 2)
    expected = (np.array([1, 0, 0]) - mean) / np.sqrt(variance)
    assert [a[0] for a in arrays] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_refused_by_its_number(number):
    with pytest.raises(DataError, match=r"trajectory 1: the reward function returned no finite number"):
        values(rewards(0.0, number, 1.0))
