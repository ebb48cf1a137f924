"""GRPO and its variants: advantages relative to the group, and the clipped surrogate."""

import numpy as np
import pytest
import torch

from build import flat_tree
from loss_inputs import logprob_gradients, token_inputs
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.core.records import Reward
from random_trees import annotated, forked_tree

FORKED = forked_tree([3, 3], [3], root=[1])
"""Root 0 ends in two leaves, root 1 in one: masses 1/2, 1/2, 1."""
every_weighting = pytest.mark.parametrize("shared", ["repeat", "split", "mass"])


def advantages(estimator, tree, *numbers):
    return estimator.advantages(annotated(tree, [Reward(number, {}) for number in numbers]), ())


@every_weighting
def test_flat_groups_get_the_published_advantage_on_each_written_token(shared):
    numbers = np.array([1.1, 0.0, -1.0, 0.4])
    arrays = advantages(GroupRelative(shared), flat_tree(1, 2, 3, 4), *numbers)
    assert [len(a) for a in arrays] == [1, 2, 3, 4]
    expected = (numbers - numbers.mean()) / (numbers.std(ddof=1) + 1e-6)
    for array, value in zip(arrays, expected, strict=True):
        assert array == pytest.approx([value] * len(array), rel=1e-5)


def test_leaving_the_subtree_out_of_a_flat_group_is_leaving_one_out():
    numbers = [1.0, 0.0, 0.5, 0.25]
    arrays = advantages(
        GroupRelative("repeat", scale="none", baseline="leave_subtree_out"), flat_tree(1, 2, 3, 4), *numbers
    )
    for i, array in enumerate(arrays):
        others = numbers[:i] + numbers[i + 1 :]
        assert array == pytest.approx([numbers[i] - np.mean(others)] * (i + 1))


def test_each_token_is_compared_with_the_leaves_that_are_not_below_it():
    arrays = advantages(
        GroupRelative("repeat", scale="none", baseline="leave_subtree_out"), FORKED, 1.0, 0.0, 0.4
    )
    assert arrays[0] == pytest.approx([1 - 0.4, 1 - 0.4, 1 - 0.2, 1 - 0.2])
    assert arrays[1] == pytest.approx([0 - 0.4, 0 - 0.4, 0 - 0.7])
    assert arrays[2] == pytest.approx([0.4 - 0.5])


def test_by_mass_the_others_weigh_what_their_leaves_weigh():
    arrays = advantages(
        GroupRelative("mass", scale="none", baseline="leave_subtree_out"), FORKED, 1.0, 0.0, 0.4
    )
    assert arrays[0][2:] == pytest.approx([1 - (0.5 * 0 + 1 * 0.4) / 1.5] * 2)


def test_a_token_above_all_leaves_has_nothing_to_be_compared_with():
    tree = forked_tree([3], [3])
    arrays = advantages(GroupRelative("repeat", scale="none", baseline="leave_subtree_out"), tree, 1.0, 0.0)
    assert [a.tolist() for a in arrays] == [[0, 0, 1], [0, 0, -1]]


def test_the_pooled_baseline_counts_leaves_alike():
    arrays = advantages(GroupRelative("repeat"), FORKED, 1, 0, 0)
    assert [a[0] for a in arrays] == pytest.approx(
        np.array([2, -1, -1]) / 3 / np.std([1, 0, 0], ddof=1), rel=1e-5
    )
    assert [len(a) for a in arrays] == [4, 3, 1]


def test_mass_weighs_the_baseline_and_the_spread():
    arrays = advantages(GroupRelative("mass"), FORKED, 1, 0, 0)
    mean = 0.5 / 2
    variance = (0.5 * 0.75**2 + 0.5 * 0.25**2 + 1 * 0.25**2) / (2 - 1.5 / 2)
    expected = (np.array([1, 0, 0]) - mean) / np.sqrt(variance)
    assert [a[0] for a in arrays] == pytest.approx(expected, rel=1e-5)


def test_at_ratio_one_the_gradient_is_that_of_reinforce():
    inputs = token_inputs([2.0, 0.0, 1.5], [0.0, -3.0, -0.5], [0.0, 0.0, 0.0])
    assert logprob_gradients(ClippedSurrogate(0.2, 0.28, 3.0), inputs) == pytest.approx([-2, 3, -1])


@pytest.mark.parametrize(
    ("ratio", "plus", "minus"),
    [
        (0.7, -0.7, 0.0),
        (0.9, -0.9, 0.9),
        (1.25, -1.25, 1.25),
        (1.3, 0.0, 1.3),
        (3.5, 0.0, 0.0),
    ],
)
def test_slope_in_each_region(ratio, plus, minus):
    log_ratio = [float(torch.tensor(ratio).log())] * 2
    inputs = token_inputs([1.0, 0.0], [0.0, -1.0], log_ratio)
    assert logprob_gradients(ClippedSurrogate(0.2, 0.28, 3.0), inputs) == pytest.approx(
        [plus, minus], rel=1e-5
    )


def test_without_dual_clip_a_large_ratio_keeps_its_slope():
    inputs = token_inputs([0.0], [-1.0], [2.0])
    assert logprob_gradients(ClippedSurrogate(0.2, 0.2, None), inputs) == pytest.approx(
        [float(torch.tensor(2.0).exp())]
    )


def test_values_are_those_of_the_clipped_ratio():
    loss = ClippedSurrogate(0.2, 0.3, 3.0)
    assert loss(token_inputs([1.0], [0.0], [1.0])).loss.item() == pytest.approx(-1.3)
    assert loss(token_inputs([0.0], [-1.0], [-1.0])).loss.item() == pytest.approx(0.8)
    assert loss(token_inputs([0.0], [-1.0], [2.0])).loss.item() == pytest.approx(3.0)


def test_clip_fraction_counts_paths_and_the_clipped_share_of_a_tokens_credit():
    inputs = token_inputs([3.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [1.0, 0.0, 2.0], paths=[4.0, 1.0, 1.0])
    sums = ClippedSurrogate(0.2, 0.2, None)(inputs).sums
    assert sums["clip_fraction"].item() == pytest.approx(4 * 3 / 4)
