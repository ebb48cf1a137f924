"""KL penalties towards the reference model, in the loss or in the reward, and the entropy bonus."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ramify.algos.losses import MAX_LOG_RATIO, LossInputs, LossOutput
from ramify.algos.ops import along
from ramify.core.errors import ConfigError, TrainingError
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, Annotations, BatchSums, Floats
from ramify.core.tree import Node, Trajectory

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """L = coefficient sum W k, k an estimate of KL(pi || ref) at each token; d = ln(ref / pi).

    k2 = d^2 / 2: on tokens sampled from pi its expected gradient is that of the KL. k3 = exp(d) - 1 - d (GRPO, arXiv
    2402.03300, equation 4): its value is unbiased and never negative, but its gradient is that of KL(ref || pi).
    k3_ratio = (pi / old) k3, with the gradient of the ratio: on tokens sampled from old, value and gradient are both
    unbiased. k2 and k3 are not corrected for off-policy tokens. k1 = -d is not offered as a loss, because its expected
    gradient is 0; use it in the reward (`KlInReward`).

    In k3 d is clipped to `MAX_LOG_RATIO`, beyond which the gradient is 0; k2 has a gradient everywhere.

    Attributes:
        estimator: Which of the three.
        coefficient: Above 0.

    Raises:
        ValueError: When called: the inputs have no reference logprobs.
    """

    estimator: Literal["k2", "k3", "k3_ratio"]
    coefficient: float

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row; `kl` reports the estimate per token."""
        if inputs.ref_logprobs is None:
            raise ValueError("a KL penalty needs reference logprobs: ask the annotation pass for them")
        estimate = self._estimate(inputs, inputs.ref_logprobs)
        loss = self.coefficient * (inputs.weight * estimate).sum()
        return LossOutput(loss, {"kl": (inputs.num_paths * estimate.detach()).sum()})

    def _estimate(self, inputs: LossInputs, ref_logprobs: "torch.Tensor") -> "torch.Tensor":
        difference = ref_logprobs - inputs.policy_logprobs
        if self.estimator == "k2":
            return difference**2 / 2
        bounded = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        k3 = bounded.expm1() - bounded
        return k3 if self.estimator == "k3" else inputs.ratio * k3


@dataclass(frozen=True, slots=True)
class EntropyBonus:
    """L = -coefficient sum W H, H the entropy of the policy at each token, in nats; its gradient is exact.

    Attributes:
        coefficient: Above 0.
    """

    coefficient: float

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row; `entropy_bonus` reports the entropy per token."""
        loss = -self.coefficient * (inputs.weight * inputs.entropies).sum()
        return LossOutput(loss, {"entropy_bonus": (inputs.num_paths * inputs.entropies.detach()).sum()})


@dataclass(frozen=True, slots=True)
class KlInReward:
    """Passes R_j - coefficient sum_t k1_{j,t} to the inner estimator as the reward, k1 as in `k1_along`.

    The sum is over all written tokens of the trajectory, shared ones included. So a group of equal rewards is not dead:
    its trajectories may differ in their KL.

    Attributes:
        inner: Turns the penalised rewards into advantages.
        coefficient: Above 0, reward per nat.

    Raises:
        ConfigError: From `batch_statistics` and `advantages`: reference logprobs are missing.
        TrainingError: From `batch_statistics` and `advantages`: a logprob is not finite.
    """

    inner: Estimator
    coefficient: float

    def batch_statistics(self, trees: Sequence[AnnotatedTree]) -> tuple[BatchSums, ...]:
        """Return the sums of the inner estimator."""
        return self.inner.batch_statistics([self._penalised(tree) for tree in trees])

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return the inner estimator's advantages. [G][T]"""
        return self.inner.advantages(self._penalised(tree), statistics)

    def _penalised(self, tree: AnnotatedTree) -> AnnotatedTree:
        penalties = [
            self.coefficient * float(k1_along(trajectory, tree.annotations).sum())
            for trajectory in tree.tree.trajectories
        ]
        rewards = (
            replace(reward, value=reward.value - penalty)
            for reward, penalty in zip(tree.rewards, penalties, strict=True)
        )
        return replace(tree, rewards=tuple(rewards))


def k1_along(trajectory: Trajectory, annotations: Annotations) -> Floats:
    """Return k1 = ln(old / ref) at each written token, nats. [T]

    Raises:
        ConfigError: There are no reference logprobs.
        TrainingError: A logprob is not finite.
    """
    return along(trajectory, lambda node: _k1(node, annotations))


def _k1(node: Node, annotations: Annotations) -> Floats:
    if not node.token_ids:
        return np.empty(0)
    annotated = annotations.get(node.id)
    if annotated is None or annotated.ref_logprobs is None:
        raise ConfigError(
            f"kl in the reward: node {node.id!r} has no reference logprobs. Ask the annotation pass for them"
        )
    difference: Floats = annotated.old_logprobs - annotated.ref_logprobs
    if not np.isfinite(difference).all():
        raise TrainingError(f"node {node.id!r}: a logprob is not finite, so this batch cannot be trained on")
    return difference
