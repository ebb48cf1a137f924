"""The small estimators: values of nodes, and Tree-GRPO's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.algos.estimators import NodeValue, TreeGrpo
from ramify.algos.ops import by_node, leaf_weights, leaves_below
from ramify.core.records import Reward
from ramify.core.tree import Source
from random_trees import annotated, node, random_tree, tree_of


def nested():
    """Root 0 branches in two, and its first branch again; root 1 has a turn after a result and never branches.

    Leaves 0.0.0.0.0, 0.0.0.0.1, 0.0.1, 1.0.0; masses 1/4, 1/4, 1/2, 1.
    """
    policy, tool = Source.POLICY, Source.TOOL
    return tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), policy, [1, 2]),
            node((0, 0), tool, [9]),
            node((0, 0, 0), policy, [3]),
            node((0, 0, 0, 0), tool, [9]),
            node((0, 0, 0, 0, 0), policy, [4], leaf=True),
            node((0, 0, 0, 0, 1), policy, [4, 4], leaf=True),
            node((0, 0, 1), policy, [3], leaf=True),
            node((1,), policy, [1]),
            node((1, 0), tool, [9]),
            node((1, 0, 0), policy, [1, 1], leaf=True),
        ]
    )


def node_values(tree, numbers, shared="repeat"):
    return NodeValue(shared).advantages(annotated(tree, [Reward(n, {}) for n in numbers]), ())


def test_each_branch_gains_on_the_branch_above_it():
    arrays = node_values(nested(), [1.0, 0.0, 0.2, 0.8])
    root = 1.2 / 3 - 0.5
    assert arrays[0] == pytest.approx([root, root, 0.5 - 0.4, 1 - 0.5])
    assert arrays[1] == pytest.approx([root, root, 0.5 - 0.4, -0.5, -0.5])
    assert arrays[2] == pytest.approx([root, root, 0.2 - 0.4])


def test_all_turns_of_a_root_that_never_branched_are_one_branch():
    arrays = node_values(nested(), [1.0, 0.0, 0.2, 0.8])
    assert arrays[3] == pytest.approx([0.8 - 0.5] * 3)


@pytest.mark.parametrize("shared", ["repeat", "split", "mass"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_branches_of_a_path_add_up_and_shared_tokens_agree(shared, seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, depth=4, split_turns=True)
    numbers = rng.normal(size=len(tree.trajectories))
    arrays = node_values(tree, numbers, shared)
    baseline = np.average(numbers, weights=leaf_weights(tree, shared))
    below, at_node = leaves_below(tree), {}
    for trajectory, array, own in zip(tree.trajectories, arrays, numbers, strict=True):
        branches = {}
        for n, part in by_node(trajectory, array):
            for gain in part:
                branches[tuple(below[n.id])] = gain
            assert at_node.setdefault(n.id, part.tolist()) == part.tolist()
        # Branches without a written token are not on record: compare only where every one of them has some.
        if {tuple(below[n.id]) for n in trajectory.nodes[1:]} == branches.keys():
            assert sum(branches.values()) == pytest.approx(own - baseline)
    equal = node_values(tree, [0.1] * len(numbers), shared)
    assert not any(a.any() for a in equal)


def forest(*leaves_of_roots):
    """Roots that end in so many leaves each, after one tool result."""
    nodes = [node((), Source.PROMPT, [5])]
    for root, leaves in enumerate(leaves_of_roots):
        nodes.append(node((root,), Source.POLICY, [1, 2], leaf=leaves == 1))
        if leaves > 1:
            nodes.append(node((root, 0), Source.TOOL, [9]))
            nodes += [node((root, 0, i), Source.POLICY, [3], leaf=True) for i in range(leaves)]
    return tree_of(nodes)


def tree_grpo(tree, numbers, shared="repeat"):
    """The advantage of each trajectory, which all its tokens have."""
    arrays = TreeGrpo(shared).advantages(annotated(tree, [Reward(number, {}) for number in numbers]), ())
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
    assert tree_grpo(forest(3, 2), numbers) == pytest.approx(expected)


def test_a_root_with_one_leaf_has_the_advantage_in_the_group_alone():
    numbers = [1.0, 0.0, 0.5]
    assert tree_grpo(forest(1, 1, 1), numbers) == pytest.approx(normalized(numbers))
    assert tree_grpo(forest(2, 1), numbers)[2] == pytest.approx(normalized(numbers)[2])


def test_equal_rewards_in_a_subtree_leave_the_group():
    numbers = [0.1, 0.1, 0.1, 1.0, 0.0]
    assert tree_grpo(forest(3, 2), numbers)[:3] == pytest.approx(normalized(numbers)[:3])
