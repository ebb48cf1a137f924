"""Penalties that look at no advantage: leaving the reference model, and losing entropy."""

from dataclasses import dataclass
from typing import Literal

import torch

from ramify.algos.losses import MAX_LOG_RATIO, LossInputs, LossOutput
from ramify.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """L = coefficient sum W k, k an estimate of KL(pi || ref) at each token; d = ln(ref / pi).

    k2 = d^2 / 2: sampled from pi, its expected gradient is that of the KL. k3 = exp(d) - 1 - d (GRPO, arXiv
    2402.03300, equation 4): its value is unbiased and never negative, its gradient is that of KL(ref || pi) instead.
    k3_ratio = (pi / old) k3, the ratio with its gradient: unbiased in value and gradient, on tokens sampled from
    old. k2 and k3 are not corrected for data that another policy wrote. k1 = -d has no gradient in expectation and is not
    here; as part of the reward it acts.

    Beyond `MAX_LOG_RATIO` d is held in k3, which has no gradient there; k2 has one everywhere.

    Attributes:
        estimator: Which of them.
        coefficient: Above 0.

    Raises:
        ConfigError: The coefficient is not above 0.
        ValueError: Inputs without reference logprobs.
    """

    estimator: Literal["k2", "k3", "k3_ratio"]
    coefficient: float

    def __post_init__(self) -> None:
        _check_coefficient("kl", self.coefficient)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Sum over the tokens; `kl` is the estimate for each token."""
        if inputs.ref_logprobs is None:
            raise ValueError("a KL penalty needs reference logprobs: ask the annotation pass for them")
        estimate = self._estimate(inputs, inputs.ref_logprobs)
        loss = self.coefficient * (inputs.weight * estimate).sum()
        return LossOutput(loss, {"kl": (inputs.num_paths * estimate.detach()).sum()})

    def _estimate(self, inputs: LossInputs, ref_logprobs: torch.Tensor) -> torch.Tensor:
        difference = ref_logprobs - inputs.policy_logprobs
        if self.estimator == "k2":
            return difference**2 / 2
        held = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        k3 = held.expm1() - held
        return k3 if self.estimator == "k3" else inputs.ratio * k3


@dataclass(frozen=True, slots=True)
class EntropyBonus:
    """L = -coefficient sum W H, H the entropy of the policy at each token, nats; its gradient is exact.

    Attributes:
        coefficient: Above 0.

    Raises:
        ConfigError: The coefficient is not above 0.
    """

    coefficient: float

    def __post_init__(self) -> None:
        _check_coefficient("entropy_bonus", self.coefficient)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Sum over the tokens; `entropy_bonus` is the mean entropy, a shared token counted for each of its paths."""
        loss = -self.coefficient * (inputs.weight * inputs.entropies).sum()
        return LossOutput(loss, {"entropy_bonus": (inputs.num_paths * inputs.entropies.detach()).sum()})


def _check_coefficient(name: str, coefficient: float) -> None:
    """See that a penalty acts.

    Raises:
        ConfigError: It does not.
    """
    if not coefficient > 0:
        raise ConfigError(f"{name}: coefficient = {coefficient}, expected a number above 0")
