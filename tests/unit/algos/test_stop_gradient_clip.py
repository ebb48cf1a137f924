"""AEPO's clip: the four regions of its gradient (algorithms that share its value differ there)."""

import math

import pytest
import torch

from loss_inputs import slopes, token_inputs
from ramify.algos.aepo import StopGradientClip
from ramify.algos.grpo import ClippedSurrogate

LOW, HIGH = 0.2, 0.28


def at(ratio, advantage, paths=None):
    log_ratio = math.log(ratio)
    plus, minus = max(advantage, 0.0), min(advantage, 0.0)
    return token_inputs([plus], [minus], [log_ratio], paths=paths, dtype=torch.float64)


def coefficient(ratio, advantage, dual):
    """F of the paper, and the dual clip."""
    if ratio > 1 + HIGH and advantage > 0:
        return 1 + HIGH
    if ratio < 1 - LOW and advantage < 0:
        return 0.0
    if dual is not None and ratio > dual and advantage < 0:
        return 0.0
    return ratio


def frozen(log_ratio, centre, advantage, dual):
    """min(r A, clip(r, 1 - low, (1 + high) / sg(r) r) A) with sg(r) taken at `centre`, and the dual clip."""
    ratio, held = math.exp(log_ratio), math.exp(centre)
    clipped = min(max(ratio, 1 - LOW), (1 + HIGH) / held * ratio)
    value = min(ratio * advantage, clipped * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("ratio", [0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 2.9, 3.1, 8.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_numeric_gradient_is_f_in_every_region(ratio, advantage, dual):
    centre, step = math.log(ratio), 1e-7
    above, below = (frozen(centre + sign * step, centre, advantage, dual) for sign in (1, -1))
    numeric = (above - below) / (2 * step)
    assert numeric == pytest.approx(coefficient(ratio, advantage, dual) * advantage, rel=1e-6, abs=1e-6)
    (slope,) = slopes(StopGradientClip(LOW, HIGH, dual), at(ratio, advantage))
    assert slope == pytest.approx(-coefficient(ratio, advantage, dual) * advantage)


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.5, 5.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_value_and_clip_fraction_are_those_of_ppo(ratio, advantage, dual):
    given = at(ratio, advantage)
    ours, theirs = StopGradientClip(LOW, HIGH, dual)(given), ClippedSurrogate(LOW, HIGH, dual)(given)
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-15)
    assert ours.sums["clip_fraction"] == theirs.sums["clip_fraction"]


def test_a_switched_dual_clip_changes_large_ratios_with_negative_credit_only():
    for ratio in (0.5, 1.0, 2.9, 3.1):
        for advantage in (1.0, -1.0):
            with_it, without = (
                slopes(StopGradientClip(LOW, HIGH, dual), at(ratio, advantage)) for dual in (3.0, None)
            )
            assert (with_it != without) == (ratio > 3 and advantage < 0)


def test_the_gradient_above_is_bounded_however_extreme_the_ratio():
    far = token_inputs([1.0, 0.0], [0.0, -1.0], [100.0, -100.0])
    assert slopes(StopGradientClip(LOW, HIGH, None), far) == pytest.approx([-1.28, 0.0])


def test_the_share_above_the_edge_counts_paths_with_positive_credit():
    given = token_inputs(
        [1.0, 1.0, 0.0, 2.0], [0.0, -4.0, -1.0, 0.0], [1.0, 1.0, 1.0, 0.1], paths=[1, 3, 5, 7]
    )
    sums = StopGradientClip(LOW, HIGH, None)(given).sums
    assert sums["above_clip_high"] == 1 + 3
    assert sums["clip_fraction"].item() == pytest.approx(1 + 3 / 5)
