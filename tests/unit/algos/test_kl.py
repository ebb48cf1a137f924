"""Penalties in the loss, on a softmax whose divergence is known exactly, and in the reward."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from loss_inputs import token_inputs
from ramify.algos.grpo import GroupRelative
from ramify.algos.kl import EntropyBonus, KlInReward, KlPenalty
from ramify.algos.losses import LossInputs
from ramify.algos.reinforce_pp import ReinforcePlusPlus
from ramify.core.errors import ConfigError, TrainingError
from ramify.core.records import NO_ANNOTATIONS, NodeAnnotations, Reward
from random_trees import annotated, forked_tree


@pytest.fixture
def tables():
    """Logits of a policy (with gradient), of a reference and of the policy that wrote the data, over 8 tokens."""
    generator = torch.Generator().manual_seed(0)
    policy, ref, old = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    return policy.requires_grad_(), ref, old


def expected_gradient(penalty, policy, ref, old):
    """The gradient of a penalty in expectation over tokens that `old` writes."""
    logs = [torch.log_softmax(logits, -1) for logits in (policy, ref, old)]
    probabilities = logs[2].exp().detach()
    zeros = torch.zeros(8, dtype=torch.float64)
    inputs = LossInputs(
        s_plus=zeros,
        s_minus=zeros,
        weight=probabilities,
        num_paths=probabilities,
        policy_logprobs=logs[0],
        old_logprobs=logs[2].detach(),
        entropies=zeros,
        ref_logprobs=logs[1],
    )
    output = penalty(inputs)
    return torch.autograd.grad(output.loss, policy)[0], output


def divergence(policy, ref):
    """KL(pi || ref)."""
    policy, ref = torch.log_softmax(policy, -1), torch.log_softmax(ref, -1)
    return (policy.exp() * (policy - ref)).sum()


@pytest.mark.parametrize("estimator", ["k2", "k3_ratio"])
def test_on_policy_k2_and_k3_ratio_have_the_gradient_of_the_divergence(tables, estimator):
    policy, ref, _ = tables
    (exact,) = torch.autograd.grad(divergence(policy, ref), policy)
    gradient, _ = expected_gradient(KlPenalty(estimator, 1.0), policy, ref, policy.detach())
    assert torch.allclose(gradient, exact, atol=1e-12)


def test_k3_as_published_has_the_gradient_of_the_other_divergence(tables):
    policy, ref, _ = tables
    (other,) = torch.autograd.grad(divergence(ref, policy), policy)
    (exact,) = torch.autograd.grad(divergence(policy, ref), policy)
    gradient, output = expected_gradient(KlPenalty("k3", 1.0), policy, ref, policy.detach())
    assert torch.allclose(gradient, other, atol=1e-12)
    assert not torch.allclose(gradient, exact, atol=1e-2)
    assert output.loss.item() == pytest.approx(divergence(policy, ref).item())


def test_off_policy_only_k3_ratio_is_right(tables):
    policy, ref, old = tables
    (exact,) = torch.autograd.grad(divergence(policy, ref), policy)
    right = {
        name: torch.allclose(expected_gradient(KlPenalty(name, 1.0), *tables)[0], exact, atol=1e-12)
        for name in ("k2", "k3", "k3_ratio")
    }
    assert right == {"k2": False, "k3": False, "k3_ratio": True}
    _, output = expected_gradient(KlPenalty("k3_ratio", 1.0), policy, ref, old)
    assert output.loss.item() == pytest.approx(divergence(policy, ref).item())


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_ratio"])
def test_at_the_reference_model_there_is_neither_penalty_nor_gradient(estimator):
    inputs = token_inputs([1.0, 1.0], [0.0, 0.0], [0.3, -0.4], ref=[0.0, 0.0])
    output = KlPenalty(estimator, 1.0)(inputs)
    assert output.loss == 0
    assert torch.autograd.grad(output.loss, inputs.policy_logprobs)[0].tolist() == [0, 0]


@pytest.mark.parametrize(("estimator", "each"), [("k2", 0.02), ("k3", 0.0214028), ("k3_ratio", 0.0288917)])
def test_values_and_the_reported_mean(estimator, each):
    inputs = token_inputs(
        [0.0, 0.0], [0.0, 0.0], [0.3, 0.3], weight=[2.0, 1.0], paths=[5.0, 1.0], ref=[0.2, 0.2]
    )
    output = KlPenalty(estimator, 0.5)(inputs)
    assert output.loss.item() == pytest.approx(0.5 * 3 * each, rel=1e-4)
    assert output.sums["kl"].item() == pytest.approx(6 * each, rel=1e-4)


def test_k2_pulls_back_however_far_the_policy_has_gone():
    far = token_inputs([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], ref=[50.0, -50.0])
    assert torch.autograd.grad(KlPenalty("k2", 1.0)(far).loss, far.policy_logprobs)[0].tolist() == [-50, 50]
    assert torch.autograd.grad(KlPenalty("k3", 1.0)(far).loss, far.policy_logprobs)[0].tolist() == [0, 0]


def test_without_reference_logprobs_nothing_is_guessed():
    with pytest.raises(ValueError, match="reference logprobs"):
        KlPenalty("k2", 1.0)(token_inputs([1.0], [0.0], [0.0]))


def test_the_entropy_bonus_rewards_entropy_by_weight():
    inputs = token_inputs([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], weight=[2.0, 1.0], paths=[5.0, 1.0])
    output = EntropyBonus(0.1)(replace(inputs, s_plus=torch.ones(2)))
    assert output.loss.item() == pytest.approx(-0.1 * 3 * 1.2)
    assert torch.autograd.grad(output.loss, inputs.entropies)[0].tolist() == pytest.approx([-0.2, -0.1])
    assert output.sums["entropy_bonus"].item() == pytest.approx(6 * 1.2)


# k1 = 0.5 and -0.25 on the trunk, 1 on the first leaf.
ANNOTATIONS = {
    "0": NodeAnnotations(np.full(2, -1.0), np.array([-1.5, -0.75])),
    "0.0.0": NodeAnnotations(np.full(1, -1.0), np.array([-2.0])),
}


def rewarded(first, second, annotations=ANNOTATIONS):
    """The tree whose leaves get these rewards."""
    rewards = [Reward(number, {"correct": number}) for number in (first, second)]
    return annotated(forked_tree([3], []), rewards, annotations)


@pytest.mark.parametrize(("paid", "cost"), [((1, 0), (-1.5, -0.5)), ((1, 1), (-1.5, 0.5))])
def test_the_sum_over_all_written_tokens_is_taken_off_the_reward(paid, cost):
    """Equal rewards differ by what they cost."""
    estimator = KlInReward(GroupRelative("repeat", scale="none"), 2.0)
    arrays = estimator.advantages(rewarded(*paid), ())
    mean = sum(cost) / 2
    assert [a.tolist() for a in arrays] == [[cost[0] - mean] * 3, [cost[1] - mean] * 2]


def test_the_sums_over_the_batch_are_those_of_what_is_left():
    inner = ReinforcePlusPlus("repeat")
    estimator = KlInReward(inner, 2.0)
    sums = estimator.batch_statistics([rewarded(1, 0), rewarded(0, 0)])
    assert sums == pytest.approx(inner.batch_statistics([rewarded(-1.5, -0.5), rewarded(-2.5, -0.5)]))
    equal = rewarded(1, 1)
    arrays = estimator.advantages(equal, estimator.batch_statistics([equal]))
    assert sum(a.sum() for a in arrays) == pytest.approx(0)
    assert arrays[0][0] < 0 < arrays[1][0]


def test_missing_and_broken_logprobs_are_refused():
    estimator = KlInReward(GroupRelative("repeat"), 1.0)
    for annotations in (NO_ANNOTATIONS, {"0": NodeAnnotations(np.zeros(2))}):
        with pytest.raises(ConfigError, match="node '0' has no reference logprobs"):
            estimator.advantages(rewarded(1, 0, annotations), ())
    broken = {**ANNOTATIONS, "0.0.0": NodeAnnotations(np.zeros(1), np.array([-np.inf]))}
    with pytest.raises(TrainingError, match=r"node '0\.0\.0': a logprob is not finite"):
        estimator.advantages(rewarded(1, 0, broken), ())
