import numpy as np
import pytest

from ramify.algos.estimators import TreeGrpo
from ramify.algos.grpo import GroupRelative
from ramify.core.records import NO_ANNOTATIONS, Reward
from ramify.core.tree import Source
from random_trees import annotated, node, tree_of


def forest(*leaves_of_roots):
    """Roots that end in so many leaves each, after one tool result."""
    nodes = [node((), Source.PROMPT, [5])]
    for root, leaves in enumerate(leaves_of_roots):
        nodes.append(node((root,), Source.POLICY, [1, 2], leaf=leaves == 1))
        if leaves > 1:
            nodes.append(node((root, 0), Source.TOOL, [9]))
            nodes += [node((root, 0, i), Source.POLICY, [3], leaf=True) for i in range(leaves)]
    return tree_of(nodes)


def advantages(tree, numbers, shared="repeat"):
    rewards = [Reward(number, {}) for number in numbers]
    estimator = TreeGrpo(shared)
    sums = estimator.batch_statistics(
        [annotated(*one) for one in zip([tree], [rewards], [NO_ANNOTATIONS], strict=True)]
    )
    arrays = estimator.advantages(annotated(tree, rewards), sums)
    assert [len(a) for a in arrays] == [t.num_written for t in tree.trajectories]
    assert all((a == a[0]).all() for a in arrays)
    return [a[0] for a in arrays]


def normalized(numbers):
    return (np.array(numbers) - np.mean(numbers)) / (np.std(numbers, ddof=1) + 1e-6)


def test_the_advantage_in_the_subtree_is_added_to_that_in_the_group():
    numbers = [1.0, 0.0, 0.5, 0.2, 0.9]
    expected = normalized(numbers)
    expected[:3] += normalized(numbers[:3])
    expected[3:] += normalized(numbers[3:])
    assert advantages(forest(3, 2), numbers) == pytest.approx(expected)


def test_a_root_with_one_leaf_has_the_advantage_in_the_group_alone():
    numbers = [1.0, 0.0, 0.5]
    assert advantages(forest(1, 1, 1), numbers) == pytest.approx(normalized(numbers))
    assert advantages(forest(2, 1), numbers)[2] == pytest.approx(normalized(numbers)[2])


def test_equal_rewards_in_a_subtree_leave_the_group():
    numbers = [0.1, 0.1, 0.1, 1.0, 0.0]
    assert advantages(forest(3, 2), numbers)[:3] == pytest.approx(normalized(numbers)[:3])


def test_a_single_root_counts_twice():
    numbers = [1.0, 0.0, 0.5]
    assert advantages(forest(3), numbers) == pytest.approx(2 * normalized(numbers))


def test_equal_rewards_and_a_group_of_one_have_exactly_no_advantage():
    assert advantages(forest(3, 1), [0.1] * 4) == [0.0] * 4
    assert advantages(forest(1), [0.7]) == [0.0]


def test_masses_weigh_the_group_and_not_the_leaves_of_one_branching():
    numbers = [1.0, 0.0, 0.5]
    both = advantages(forest(2, 1), numbers, "mass")
    tree, rewards = forest(2, 1), [Reward(number, {}) for number in numbers]
    group = [a[0] for a in GroupRelative("mass").advantages(annotated(tree, rewards), ())]
    assert np.subtract(both, group) == pytest.approx([*normalized(numbers[:2]), 0.0])
