import pytest
import torch

from loss_inputs import slopes, token_inputs
from ramify.algos.losses import CispoSurrogate


def at(ratio):
    log_ratio = float(torch.tensor(ratio, dtype=torch.float64).log())
    return token_inputs([3.0, 1.0], [-1.0, -2.0], [log_ratio] * 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "weight"), [(0.01, 0.01), (0.7, 0.7), (1.0, 1.0), (1.27, 1.27), (9.0, 1.28)]
)
def test_without_a_lower_edge_only_large_weights_are_clipped(ratio, weight):
    given = at(ratio)
    loss = CispoSurrogate(clip_low=None, clip_high=0.28)
    assert slopes(loss, given) == pytest.approx([-2 * weight, weight])
    assert loss(given).loss.item() == pytest.approx(-weight * (2 - 1) * given.policy_logprobs[0].item())


@pytest.mark.parametrize(("ratio", "weight", "clipped"), [(0.01, 0.8, 2), (0.9, 0.9, 0), (9.0, 1.28, 2)])
def test_with_one_both_signs_are_clipped_at_both_edges(ratio, weight, clipped):
    given = at(ratio)
    loss = CispoSurrogate(clip_low=0.2, clip_high=0.28)
    assert slopes(loss, given) == pytest.approx([-2 * weight, weight])
    assert loss(given).sums["clip_fraction"] == clipped


def test_no_ratio_is_too_extreme_for_a_gradient():
    far = token_inputs([1.0, 1.0], [0.0, 0.0], [100.0, -100.0])
    assert slopes(CispoSurrogate(clip_low=0.2, clip_high=0.28), far) == pytest.approx([-1.28, -0.8])
    assert slopes(CispoSurrogate(clip_low=None, clip_high=0.28), far)[1] == pytest.approx(
        -torch.tensor(-20.0).exp().item()
    )


def test_the_token_is_trained_although_ppo_would_have_dropped_it():
    given = token_inputs([1.0, 0.0], [0.0, -1.0], [1.0, -1.0])
    assert all(slopes(CispoSurrogate(clip_low=0.2, clip_high=0.2), given))
