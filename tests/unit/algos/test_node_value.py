import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.algos.estimators import NodeValue
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


def advantages(tree, numbers, shared="repeat"):
    return NodeValue(shared).advantages(annotated(tree, [Reward(n, {}) for n in numbers]), ())


def test_each_branch_gains_on_the_branch_above_it():
    arrays = advantages(nested(), [1.0, 0.0, 0.2, 0.8])
    root = 1.2 / 3 - 0.5
    assert arrays[0] == pytest.approx([root, root, 0.5 - 0.4, 1 - 0.5])
    assert arrays[1] == pytest.approx([root, root, 0.5 - 0.4, -0.5, -0.5])
    assert arrays[2] == pytest.approx([root, root, 0.2 - 0.4])


def test_all_turns_of_a_root_that_never_branched_are_one_branch():
    arrays = advantages(nested(), [1.0, 0.0, 0.2, 0.8])
    assert arrays[3] == pytest.approx([0.8 - 0.5] * 3)


def test_values_are_weighted_by_mass():
    arrays = advantages(nested(), [1.0, 0.0, 0.2, 0.8], "mass")
    root = (0.25 * 1 + 0.5 * 0.2) - (0.25 * 1 + 0.5 * 0.2 + 0.8) / 2
    assert arrays[0][:3] == pytest.approx([root, root, 0.5 - 0.35])


def test_tokens_above_all_leaves_get_nothing():
    tree = tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            *(node((0, 0, i), Source.POLICY, [3], leaf=True) for i in range(2)),
        ]
    )
    assert [a.tolist() for a in advantages(tree, [1.0, 0.0])] == [[0, 0, 0.5], [0, 0, -0.5]]


def test_a_group_of_one_has_exactly_no_advantage():
    tree = tree_of([node((), Source.PROMPT, [5]), node((0,), Source.POLICY, [1], leaf=True)])
    assert advantages(tree, [0.7])[0].tolist() == [0.0]


@pytest.mark.parametrize("shared", ["repeat", "split", "mass"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_branches_of_a_path_add_up_and_shared_tokens_agree(shared, seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, depth=4, split_turns=True)
    numbers = rng.normal(size=len(tree.trajectories))
    arrays = advantages(tree, numbers, shared)
    baseline = np.average(numbers, weights=leaf_weights(tree, shared))
    below, seen = leaves_below(tree), {}
    for trajectory, array, own in zip(tree.trajectories, arrays, numbers, strict=True):
        branches = {}
        for n, part in by_node(trajectory, array):
            for gain in part:
                branches[tuple(below[n.id])] = gain
            assert seen.setdefault(n.id, part.tolist()) == part.tolist()
        # Branches without a written token are not on record: compare only where every one of them has some.
        if {tuple(below[n.id]) for n in trajectory.nodes[1:]} == branches.keys():
            assert sum(branches.values()) == pytest.approx(own - baseline)
    equal = advantages(tree, [0.1] * len(numbers), shared)
    assert not any(a.any() for a in equal)
