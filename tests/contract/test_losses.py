"""Laws of every surrogate and penalty that a recipe can name."""

from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch

import own_parts
from loss_inputs import logprob_gradients, path_inputs, token_inputs
from ramify.assemble.algorithm import build_objective
from ramify.config.mistakes import form_of
from ramify.config.schema_algorithm import AlgorithmSection, LossSection

ESTIMATOR = {"estimator": {"name": "group"}}
TOKEN_LOSSES = {
    "clip": {"name": "clip"},
    "clip, higher": {"name": "clip", "clip_high": 0.28},
    "clip, dual": {"name": "clip", "dual_clip": 3.0},
    "aepo_clip": {"name": "aepo_clip"},
    "aepo_clip, dual": {"name": "aepo_clip", "dual_clip": 3.0},
    "gppo": {"name": "gppo"},
    "cispo": {"name": "cispo", "clip_high": 0.28},
    "file": {"name": "file", "path": own_parts.__file__, "function": "clip"},
    "cispo, lower edge": {"name": "cispo", "clip_low": 0.2, "clip_high": 0.28},
}
PATH_LOSSES = {"gspo": {"name": "gspo", "aggregation": "sequence_mean"}}
PENALTIES = {
    **{
        f"kl, {name}": {"kl": {"place": "loss", "estimator": name, "coefficient": 0.5}}
        for name in ("k2", "k3", "k3_ratio")
    },
    "entropy": {"entropy_bonus": 0.5},
}
NAMES = [form_of(s)[1][0] for s in get_args(get_args(LossSection)[0])]
DTYPES = (torch.float32, torch.float64)


@pytest.fixture(params=TOKEN_LOSSES)
def surrogate(request):
    objective = build_objective(AlgorithmSection(loss=TOKEN_LOSSES[request.param], **ESTIMATOR))
    (loss,) = objective.token_losses
    assert objective.sequence_loss is None
    return loss


@pytest.fixture(params=PATH_LOSSES)
def sequence_loss(request):
    loss = {"name": PATH_LOSSES[request.param]["name"]}
    section = AlgorithmSection(loss=loss, aggregation="sequence_mean", **ESTIMATOR)
    objective = build_objective(section)
    assert objective.token_losses == ()
    return objective.sequence_loss


@pytest.fixture(params=PENALTIES)
def penalty(request):
    objective = build_objective(
        AlgorithmSection(loss={"name": "clip"}, **PENALTIES[request.param], **ESTIMATOR)
    )
    (penalty,) = objective.penalties
    return penalty


def random_tokens(seed, dtype=torch.float64, scale=1.0):
    rng = np.random.default_rng(seed)
    plus, minus = np.abs(rng.normal(size=50)), -np.abs(rng.normal(size=50))
    shift, ref = rng.uniform(-1, 1, 50) * scale, rng.uniform(-1, 1, 50) * scale
    paths = rng.integers(1, 5, 50)
    return token_inputs(
        plus, minus, shift, paths=paths, weight=np.abs(rng.normal(size=50)), ref=ref, dtype=dtype
    )


def test_every_loss_of_the_schema_is_here():
    inputs = [settings["name"] for settings in (*TOKEN_LOSSES.values(), *PATH_LOSSES.values())]
    assert set(inputs) == set(NAMES)


def test_on_policy_the_gradient_is_that_of_reinforce(surrogate):
    inputs = random_tokens(0, scale=0.0)
    assert logprob_gradients(surrogate, inputs) == pytest.approx((-(inputs.s_plus + inputs.s_minus)).tolist())
    assert surrogate(inputs).sums["clip_fraction"] == 0


def test_value_and_gradient_are_linear_in_the_credit(surrogate):
    first, second = random_tokens(1), random_tokens(1)
    second = replace(second, s_plus=first.s_plus.flip(0), s_minus=first.s_minus.flip(0))
    both = replace(first, s_plus=3 * first.s_plus + second.s_plus, s_minus=3 * first.s_minus + second.s_minus)
    assert surrogate(both).loss.item() == pytest.approx(
        3 * surrogate(first).loss.item() + surrogate(second).loss.item()
    )
    expected = 3 * np.array(logprob_gradients(surrogate, first)) + np.array(
        logprob_gradients(surrogate, second)
    )
    assert logprob_gradients(surrogate, both) == pytest.approx(expected.tolist())


def test_no_credit_no_loss_and_no_gradient(surrogate):
    inputs = random_tokens(2)
    inputs = replace(inputs, s_plus=torch.zeros_like(inputs.s_plus), s_minus=torch.zeros_like(inputs.s_minus))
    assert surrogate(inputs).loss == 0
    assert not any(logprob_gradients(surrogate, inputs))
    assert all(value == 0 for value in surrogate(inputs).sums.values())


def test_no_gradient_reaches_reports_entropies_or_old_logprobs(surrogate):
    inputs = random_tokens(3)
    output = surrogate(inputs)
    assert all(not value.requires_grad for value in output.sums.values())
    assert torch.autograd.grad(output.loss, inputs.entropies, allow_unused=True) == (None,)


def test_reported_shares_lie_between_nothing_and_every_path(surrogate):
    for seed in range(5):
        inputs = random_tokens(seed, scale=2.0)
        sums = surrogate(inputs).sums
        assert "clip_fraction" in sums
        assert all(0 <= value <= inputs.num_paths.sum() for value in sums.values())


def test_extreme_ratios_are_finite(surrogate):
    for log_ratio, dtype in product((30.0, 1000.0, -30.0, -1000.0), DTYPES):
        inputs = token_inputs([1.0, 0.0, 2.0], [0.0, -1.0, -3.0], [log_ratio] * 3, dtype=dtype)
        output = surrogate(inputs)
        assert output.loss.isfinite()
        assert np.isfinite(logprob_gradients(surrogate, inputs)).all()
        assert all(value.isfinite() for value in output.sums.values())


def test_float64_stays_float64_and_float32_is_near_it(surrogate):
    exact, rough = random_tokens(4), random_tokens(4, torch.float32)
    assert surrogate(exact).loss.dtype == torch.float64
    assert surrogate(rough).loss.item() == pytest.approx(surrogate(exact).loss.item(), rel=1e-5)
    assert logprob_gradients(surrogate, rough) == pytest.approx(
        logprob_gradients(surrogate, exact), rel=1e-5, abs=1e-5
    )


def test_a_logprob_that_is_no_number_is_not_hidden(surrogate):
    inputs = token_inputs([1.0, 0.0], [0.0, -1.0], [float("nan")] * 2)
    assert not surrogate(inputs).loss.isfinite()


def test_on_policy_a_path_has_the_slope_of_its_mean_token(sequence_loss):
    output = sequence_loss(path_inputs([0.0] * 3, [1.0, -2.0, 3.0], [1.0, 2.0, 0.5], [5, 4, 2]))
    assert output.gradients == pytest.approx([-1 / 5, 4 / 4, -1.5 / 2])
    assert output.loss == pytest.approx(-(1 - 4 + 1.5))
    assert output.sums["clip_fraction"] == 0


def test_slopes_are_the_derivative_of_the_loss(sequence_loss):
    rng = np.random.default_rng(5)
    means, advantages, weights = rng.uniform(-0.5, 0.5, 20), rng.normal(size=20), rng.uniform(0, 2, 20)
    inputs = path_inputs(means, advantages, weights, rng.integers(1, 9, 20))
    for j in range(20):
        step = np.zeros(20)
        step[j] = 1e-6
        above, below = (
            sequence_loss(replace(inputs, policy_logprobs=inputs.policy_logprobs + sign * step)).loss
            for sign in (1, -1)
        )
        assert (above - below) / 2e-6 == pytest.approx(sequence_loss(inputs).gradients[j], abs=1e-7)


def test_a_path_loss_is_linear_in_weights_and_zero_without_credit(sequence_loss):
    rng = np.random.default_rng(6)
    inputs = path_inputs(rng.uniform(-0.5, 0.5, 9), rng.normal(size=9))
    doubled = sequence_loss(replace(inputs, weights=2 * inputs.weights))
    assert doubled.loss == pytest.approx(2 * sequence_loss(inputs).loss)
    assert doubled.gradients == pytest.approx(2 * sequence_loss(inputs).gradients)
    for nothing in ({"weights": np.zeros(9)}, {"advantages": np.zeros(9)}):
        output = sequence_loss(replace(inputs, **nothing))
        assert (output.loss, output.sums["clip_fraction"]) == (0, 0)
        assert not output.gradients.any()


@pytest.mark.parametrize("mean", [30.0, 1000.0, -30.0, -1000.0])
def test_extreme_paths_are_finite(sequence_loss, mean):
    output = sequence_loss(path_inputs([mean, mean], [1.0, -1.0]))
    assert np.isfinite([output.loss, *output.gradients]).all()


def test_a_path_without_tokens_adds_nothing(sequence_loss):
    output = sequence_loss(path_inputs([0.0, 0.1], [4.0, -1.0], num_written=[0, 3]))
    alone = sequence_loss(path_inputs([0.1], [-1.0], num_written=[3]))
    assert output.loss == alone.loss
    assert output.gradients.tolist() == [0.0, *alone.gradients]


def test_a_path_that_is_no_number_is_not_hidden(sequence_loss):
    assert not np.isfinite(sequence_loss(path_inputs([float("nan"), 0.0], [1.0, 1.0])).loss)


def test_a_penalty_weighs_tokens_and_looks_at_no_advantage(penalty):
    inputs = random_tokens(7)
    other = replace(inputs, s_plus=inputs.s_plus * 0, s_minus=inputs.s_minus * 5, weight=inputs.weight * 2)
    assert penalty(other).loss.item() == pytest.approx(2 * penalty(inputs).loss.item())
    nothing = replace(inputs, weight=inputs.weight * 0)
    assert penalty(nothing).loss == 0
    assert penalty(nothing).sums == penalty(inputs).sums


def test_extreme_penalties_are_finite(penalty):
    for extreme, dtype in product((30.0, 1000.0, -30.0, -1000.0), DTYPES):
        inputs = token_inputs([1.0], [0.0], [extreme], ref=[extreme], dtype=dtype)
        loss = penalty(inputs).loss
        assert loss.isfinite()
        assert loss.dtype == dtype
        grads = torch.autograd.grad(loss, (inputs.policy_logprobs, inputs.entropies), materialize_grads=True)
        assert all(grad.isfinite().all() for grad in grads)


def test_gradients_of_penalties_are_those_of_finite_differences(penalty):
    inputs = random_tokens(8)
    ref = inputs.ref_logprobs

    def loss(policy, entropies):
        return penalty(replace(inputs, policy_logprobs=policy, entropies=entropies, ref_logprobs=ref)).loss

    assert torch.autograd.gradcheck(loss, (inputs.policy_logprobs, inputs.entropies))
