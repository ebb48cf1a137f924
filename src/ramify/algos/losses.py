"""What goes into a loss on packed rows and what comes out of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """The written tokens of a packed row; every tensor is [W], float32, nats.

    Attributes:
        s_plus, s_minus, weight, num_paths: See `ramify.core.records.NodeCredit`.
        policy_logprobs: Under the weights being trained; carries gradient.
        old_logprobs: Under the weights that the ratio is taken to.
        entropies: Of the policy at each token, where the learner computes them; carries gradient.
    """

    s_plus: torch.Tensor
    s_minus: torch.Tensor
    weight: torch.Tensor
    num_paths: torch.Tensor
    policy_logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    entropies: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """A loss and what there is to report of it.

    Attributes:
        loss: Sum over tokens, not divided by anything. Scalar.
        sums: Sums over tokens, each counted num_paths times, to be divided by the sum of num_paths.
    """

    loss: torch.Tensor
    sums: Mapping[str, torch.Tensor]


class PolicyLoss(Protocol):
    """A loss that is a sum over tokens."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss of one row."""
        ...
