import pytest
import torch

from loss_inputs import slopes, token_inputs
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.losses import GppoSurrogate


def at(ratio):
    log_ratio = float(torch.tensor(ratio, dtype=torch.float64).log())
    return token_inputs([1.0, 0.0], [0.0, -1.0], [log_ratio] * 2, dtype=torch.float64)


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
    assert slopes(GppoSurrogate(0.2, 0.28), at(ratio)) == pytest.approx([plus, minus])


@pytest.mark.parametrize("ratio", [0.1, 0.79, 0.9, 1.1, 1.29, 4.0])
def test_value_and_clip_fraction_are_those_of_ppo(ratio):
    ours, theirs = GppoSurrogate(0.2, 0.28)(at(ratio)), ClippedSurrogate(0.2, 0.28, None)(at(ratio))
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-15)
    assert ours.sums == theirs.sums


def test_the_bounded_gradient_holds_however_extreme_the_ratio():
    far = token_inputs([1.0, 1.0], [-1.0, -1.0], [100.0, -100.0])
    assert slopes(GppoSurrogate(0.2, 0.28), far) == pytest.approx([-1.28, 0.8])
