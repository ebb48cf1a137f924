"""What goes into a loss on packed rows and what comes out of it: token losses, losses on whole paths, their sum.

A token loss is a sum over unique tokens of S+, S- and W times functions of that token's ratio. A loss whose ratio is
that of a whole trajectory cannot be written so; it is evaluated on path sums that were computed without gradient, and
its gradient is linear: dL = sum_j slope_j d(sum_t ln pi_{j,t}), which is again a sum over unique tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from ramify.core.records import Floats, Ints

MAX_LOG_RATIO = 20.0
"""Logarithms of ratios are held within this many nats, beyond which there is no gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """The written tokens of a packed row; every tensor is [W], nats.

    Attributes:
        s_plus, s_minus, weight, num_paths: See `ramify.core.records.NodeCredit`.
        policy_logprobs: Under the weights being trained; carries gradient.
        old_logprobs: Under the weights that the ratio is taken to.
        entropies: Of the policy at each token; carries gradient.
        ref_logprobs: Under the reference model, where a penalty asked for them.
    """

    s_plus: torch.Tensor
    s_minus: torch.Tensor
    weight: torch.Tensor
    num_paths: torch.Tensor
    policy_logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    entropies: torch.Tensor
    ref_logprobs: torch.Tensor | None = None

    @property
    def ratio(self) -> torch.Tensor:
        """pi / old. [W]"""
        return bounded_exp(self.policy_logprobs - self.old_logprobs)

    def clip_fraction(self, plus_is_clipped: torch.Tensor, minus_is_clipped: torch.Tensor) -> torch.Tensor:
        """Share of each token's credit that is clipped, given where each side is; summed over paths. Scalar."""
        with torch.no_grad():
            clipped = self.s_plus * plus_is_clipped - self.s_minus * minus_is_clipped
            credit = self.s_plus - self.s_minus
            return (torch.where(credit > 0, clipped / credit, 0.0) * self.num_paths).sum()


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp, with the exponent held within `MAX_LOG_RATIO`."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """A loss and what there is to report of it.

    Attributes:
        loss: Sum over tokens, not divided by anything. Scalar.
        sums: Sums over tokens, each counted num_paths times, to be divided by the sum of num_paths.
    """

    loss: torch.Tensor
    sums: Mapping[str, torch.Tensor]


class TokenLoss(Protocol):
    """A loss that is a sum over tokens."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss of one row."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PathInputs:
    """The trajectories of one optimizer step; sums are over their written tokens, nats. [J] each

    `ref_logprobs` is None where no penalty and no loss asked for them; the other fields are those of
    `ramify.core.records.PathCredit`.
    """

    policy_logprobs: Floats
    old_logprobs: Floats
    ref_logprobs: Floats | None
    advantages: Floats
    weights: Floats
    num_written: Ints
    tree: Ints


@dataclass(frozen=True, slots=True, eq=False)
class PathOutput:
    """A loss on paths.

    Attributes:
        loss: Sum over trajectories, not divided by anything.
        slopes: d loss / d (sum of policy logprobs) of each trajectory. [J]
        sums: Sums over trajectories, to be divided by their number.
    """

    loss: float
    slopes: Floats
    sums: Mapping[str, float]


class PathLoss(Protocol):
    """A loss that needs sums over whole trajectories before its gradient is known."""

    @property
    def needs_paths(self) -> bool:
        """True: what tells it from a token loss."""
        ...

    def __call__(self, inputs: PathInputs) -> PathOutput:
        """The loss of one optimizer step, in float64."""
        ...


PolicyLoss: TypeAlias = TokenLoss | PathLoss


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised: a surrogate, and penalties that weigh each token by W.

    Attributes:
        surrogate: Looks at advantages.
        penalties: Do not (a KL term, an entropy bonus); they keep trees without any advantage alive.
    """

    surrogate: PolicyLoss
    penalties: tuple[TokenLoss, ...] = ()

    @property
    def path_loss(self) -> PathLoss | None:
        """The surrogate, if it looks at whole paths."""
        return self.surrogate if _needs_paths(self.surrogate) else None  # type: ignore[return-value]

    @property
    def token_losses(self) -> tuple[TokenLoss, ...]:
        """Everything that is a sum over tokens."""
        own = () if _needs_paths(self.surrogate) else (self.surrogate,)
        return (*own, *self.penalties)


def _needs_paths(loss: PolicyLoss) -> bool:
    return bool(getattr(loss, "needs_paths", False))
