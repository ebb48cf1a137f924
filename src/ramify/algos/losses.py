"""Inputs and outputs of losses on packed rows: token losses, sequence losses, and the objective that combines them.

A token loss is a sum over unique tokens of S+, S- and W times functions of that token's ratio. A sequence loss, whose
ratio is that of a whole trajectory, has no such form. It is evaluated on sums over paths that were computed without
gradient. Its gradient is linear in theirs, dL = sum_j slope_j d(sum_t ln pi_{j,t}), which is again a sum over unique
tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ramify.algos.credit import Weighting, credit, denominator, path_credit
from ramify.core.records import CreditedTree, Floats, Ints, PathCredit, TrainingTree

if TYPE_CHECKING:
    import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are clipped to this many nats either way; beyond that the gradient is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """The written tokens of a packed row; every tensor is [W], logprobs and entropies in nats.

    Attributes:
        s_plus, s_minus, weight, num_paths: See `ramify.core.records.NodeCredit`.
        policy_logprobs: Logprobs under the weights being trained; with gradient.
        old_logprobs: Logprobs under the weights in the denominator of the ratio.
        entropies: Entropy of the policy at each token; with gradient.
        ref_logprobs: Logprobs under the reference model; None unless a penalty needs them.
    """

    s_plus: "torch.Tensor"
    s_minus: "torch.Tensor"
    weight: "torch.Tensor"
    num_paths: "torch.Tensor"
    policy_logprobs: "torch.Tensor"
    old_logprobs: "torch.Tensor"
    entropies: "torch.Tensor"
    ref_logprobs: "torch.Tensor | None" = None

    @property
    def ratio(self) -> "torch.Tensor":
        """pi / old. [W]"""
        return bounded_exp(self.policy_logprobs - self.old_logprobs)

    def clip_fraction(
        self, plus_is_clipped: "torch.Tensor", minus_is_clipped: "torch.Tensor"
    ) -> "torch.Tensor":
        """Share of each token's credit that is clipped, summed over tokens and paths. Scalar.

        The arguments say at which tokens the positive and the negative side are clipped. [W] each
        """
        import torch

        with torch.no_grad():
            clipped = self.s_plus * plus_is_clipped - self.s_minus * minus_is_clipped
            credit = self.s_plus - self.s_minus
            return (torch.where(credit > 0, clipped / credit, 0.0) * self.num_paths).sum()


def bounded_exp(log_ratio: "torch.Tensor") -> "torch.Tensor":
    """exp, with the exponent clipped to `MAX_LOG_RATIO` either way."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """A loss and its metrics.

    Attributes:
        loss: Sum over tokens, not divided by anything. Scalar.
        sums: Sums over tokens, each counted num_paths times, to be divided by the sum of num_paths.
    """

    loss: "torch.Tensor"
    sums: "Mapping[str, torch.Tensor]"


class TokenLoss(Protocol):
    """A loss that is a sum over tokens."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss of one packed row."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SequenceInputs:
    """The trajectories of one optimizer step; logprobs are sums over their written tokens, in nats. [J] each

    `ref_logprobs` is None if neither a penalty nor the loss needs them. The fields other than logprobs are those of
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
class SequenceOutput:
    """A sequence loss, its gradient and its metrics.

    Attributes:
        loss: Sum over trajectories, not divided by anything.
        gradients: Gradient: d loss / d (sum of policy logprobs) of each trajectory. [J]
        sums: Sums over trajectories, to be divided by their number.
    """

    loss: float
    gradients: Floats
    sums: Mapping[str, float]


class SequenceLoss(Protocol):
    """A sequence loss: its gradient depends on sums over whole trajectories."""

    @property
    def needs_paths(self) -> bool:
        """True; a token loss lacks this attribute."""
        ...

    def __call__(self, inputs: SequenceInputs) -> SequenceOutput:
        """The loss of one optimizer step, in float64."""
        ...


PolicyLoss: TypeAlias = TokenLoss | SequenceLoss


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised: a surrogate, and penalties that weigh each token by W.

    Attributes:
        surrogate: The policy loss; depends on advantages.
        penalties: Independent of advantages (a KL term, an entropy bonus), so even dead groups have a gradient.
        weighting: How much each token counts.
    """

    surrogate: PolicyLoss
    penalties: tuple[TokenLoss, ...] = ()
    weighting: Weighting = field(default_factory=Weighting)

    @property
    def keeps_dead(self) -> bool:
        """Return True if a token without advantage still has a gradient."""
        return bool(self.penalties)

    def credit(self, tree: TrainingTree) -> CreditedTree:
        """The credit of a tree's policy nodes under the weighting."""
        return CreditedTree(tree.tree, tree.annotations, credit(tree, self.weighting))

    def denominator(self, trees: Sequence[TrainingTree]) -> float:
        """Return the divisor of an optimizer step's loss: the number of trees, or the weighting's denominator."""
        if getattr(self.surrogate, "is_mean_over_trees", False):
            return float(len(trees))
        return denominator([tree.tree for tree in trees], self.weighting)

    def paths(self, trees: Sequence[TrainingTree]) -> PathCredit | None:
        """The trajectories of an optimizer step, if the surrogate is a sequence loss."""
        return None if self.sequence_loss is None else path_credit(trees, self.weighting)

    @property
    def sequence_loss(self) -> SequenceLoss | None:
        """The surrogate, if it is a sequence loss."""
        return self.surrogate if _needs_paths(self.surrogate) else None  # type: ignore[return-value]

    @property
    def token_losses(self) -> tuple[TokenLoss, ...]:
        """All terms that are token losses."""
        own = () if _needs_paths(self.surrogate) else (self.surrogate,)
        return (*own, *self.penalties)


def _needs_paths(loss: PolicyLoss) -> bool:
    return bool(getattr(loss, "needs_paths", False))
