"""The small losses, GPPO, CISPO and GSPO: their gradients in each region."""

import math

import numpy as np
import pytest
import torch

from loss_inputs import logprob_gradients, path_inputs, token_inputs
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.losses import CispoSurrogate, GppoSurrogate, GspoSurrogate

NARROW = GspoSurrogate(3e-4, 4e-4)


def at(ratio, plus=(1.0, 0.0), minus=(0.0, -1.0)):
    log_ratio = float(torch.tensor(ratio, dtype=torch.float64).log())
    return token_inputs(plus, minus, [log_ratio] * 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "plus", "minus"),
    [
        (0.1, -0.1, 0.8),
        (0.7, -0.7, 0.8),
        (0.9, -0.9, 0.9),
        (1.27, -1.27, 1.27),
        (1.3, -1.28, 1.3),
        (5.0, -1.28, 5.0),
    ],
)
def test_outside_both_edges_the_slope_is_that_of_the_edge(ratio, plus, minus):
    assert logprob_gradients(GppoSurrogate(0.2, 0.28), at(ratio)) == pytest.approx([plus, minus])


@pytest.mark.parametrize("ratio", [0.1, 0.79, 0.9, 1.1, 1.29, 4.0])
def test_value_and_clip_fraction_are_those_of_ppo(ratio):
    ours, theirs = GppoSurrogate(0.2, 0.28)(at(ratio)), ClippedSurrogate(0.2, 0.28, None)(at(ratio))
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-15)
    assert ours.sums == theirs.sums


@pytest.mark.parametrize(
    ("ratio", "weight"), [(0.01, 0.01), (0.7, 0.7), (1.0, 1.0), (1.27, 1.27), (9.0, 1.28)]
)
def test_without_a_lower_edge_only_large_weights_are_clipped(ratio, weight):
    inputs = at(ratio, (3.0, 1.0), (-1.0, -2.0))
    loss = CispoSurrogate(clip_low=None, clip_high=0.28)
    assert logprob_gradients(loss, inputs) == pytest.approx([-2 * weight, weight])
    assert loss(inputs).loss.item() == pytest.approx(-weight * (2 - 1) * inputs.policy_logprobs[0].item())


@pytest.mark.parametrize(("ratio", "weight", "clipped"), [(0.01, 0.8, 2), (0.9, 0.9, 0), (9.0, 1.28, 2)])
def test_with_one_both_signs_are_clipped_at_both_edges(ratio, weight, clipped):
    inputs = at(ratio, (3.0, 1.0), (-1.0, -2.0))
    loss = CispoSurrogate(clip_low=0.2, clip_high=0.28)
    assert logprob_gradients(loss, inputs) == pytest.approx([-2 * weight, weight])
    assert loss(inputs).sums["clip_fraction"] == clipped


def test_no_ratio_is_too_extreme_for_a_gradient():
    far = token_inputs([1.0, 1.0], [0.0, 0.0], [100.0, -100.0])
    assert logprob_gradients(CispoSurrogate(clip_low=0.2, clip_high=0.28), far) == pytest.approx(
        [-1.28, -0.8]
    )
    assert logprob_gradients(CispoSurrogate(clip_low=None, clip_high=0.28), far)[1] == pytest.approx(
        -torch.tensor(-20.0).exp().item()
    )


@pytest.mark.parametrize(
    ("mean", "advantage", "held", "moves"),
    [
        (3e-4, 2.0, math.exp(3e-4), True),
        (5e-4, 2.0, 1 + 4e-4, False),
        (-5e-4, 2.0, math.exp(-5e-4), True),
        (-2e-4, -2.0, math.exp(-2e-4), True),
        (-5e-4, -2.0, 1 - 3e-4, False),
        (5e-4, -2.0, math.exp(5e-4), True),
    ],
)
def test_loss_and_slope_in_each_region_of_the_narrow_edges(mean, advantage, held, moves):
    output = NARROW(path_inputs([mean], [advantage], [0.5], [7]))
    assert output.loss == pytest.approx(-0.5 * held * advantage, rel=1e-14)
    assert output.gradients[0] == pytest.approx(-0.5 * advantage * held / 7 if moves else 0.0, rel=1e-14)
    assert output.sums["clip_fraction"] == (0 if moves else 1)


def test_the_ratio_is_the_geometric_mean_over_all_tokens():
    inputs = path_inputs([0.2], [-1.0], num_written=[10])
    assert inputs.policy_logprobs[0] - inputs.old_logprobs[0] == pytest.approx(2.0)
    assert GspoSurrogate(0.1, 0.1)(inputs).loss == pytest.approx(math.exp(0.2))


def test_beyond_the_bound_there_is_no_gradient():
    inputs = path_inputs([25.0, -25.0], [-1.0, 1.0])
    output = GspoSurrogate(0.1, 0.1)(inputs)
    assert not output.gradients.any()
    assert output.loss == pytest.approx(math.exp(20) - math.exp(-20))


def test_paths_without_weight_or_advantage_are_not_counted_as_clipped():
    inputs = path_inputs([0.5, 0.5, 0.5], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0])
    assert NARROW(inputs).sums["clip_fraction"] == 1


def test_no_paths_no_loss():
    output = NARROW(path_inputs([], []))
    assert (output.loss, len(output.gradients)) == (0, 0)
    assert output.gradients.dtype == np.float64
