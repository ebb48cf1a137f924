"""GRPO and its variants: advantages relative to the group, and the clipped surrogate."""

import numpy as np
import pytest
import torch

from loss_inputs import logprob_gradients, token_inputs
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.core.records import Reward
from random_trees import annotated, forked_tree

FORKED = forked_tree([3, 3], [3], root=[1])
"""Root 0 ends in two leaves, root 1 in one: masses 1/2, 1/2, 1."""


def advantages(estimator, tree, *numbers):
    return estimator.advantages(annotated(tree, [Reward(number, {}) for number in numbers]), ())


def test_each_token_is_compared_with_the_leaves_that_are_not_below_it():
    arrays = advantages(
        GroupRelative("repeat", scale="none", baseline="leave_subtree_out"), FORKED, 1.0, 0.0, 0.4
    )
    assert arrays[0] == pytest.approx([1 - 0.4, 1 - 0.4, 1 - 0.2, 1 - 0.2])
    assert arrays[1] == pytest.approx([0 - 0.4, 0 - 0.4, 0 - 0.7])
    assert arrays[2] == pytest.approx([0.4 - 0.5])


def test_mass_weighs_the_baseline_and_the_spread():
    arrays = advantages(GroupRelative("mass"), FORKED, 1, 0, 0)
    mean = 0.5 / 2
    variance = (0.5 * 0.75**2 + 0.5 * 0.25**2 + 1 * 0.25**2) / (2 - 1.5 / 2)
    expected = (np.array([1, 0, 0]) - mean) / np.sqrt(variance)
    assert [a[0] for a in arrays] == pytest.approx(expected, rel=1e-5)


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
