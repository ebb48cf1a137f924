import math

import numpy as np
import pytest

from loss_inputs import path_inputs
from ramify.algos.losses import GspoSurrogate

NARROW = GspoSurrogate(3e-4, 4e-4)


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


def test_it_says_that_it_needs_paths():
    assert NARROW.needs_paths
