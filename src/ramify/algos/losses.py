"""Losses on packed rows: what they get and return, the objective that combines them, and the small ones (GPPO, CISPO, GSPO).

A token loss is a sum over unique tokens of S+, S- and W times functions of that token's ratio. A sequence loss, whose
ratio is that of a whole trajectory, has no such form. It is evaluated on sums over paths that were computed without
gradient. Its gradient is linear in theirs, dL = sum_j slope_j d(sum_t ln pi_{j,t}), which is again a sum over unique
tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from ramify.algos.credit import Weighting, credit, denominator, path_credit
from ramify.core.config import Config, InsideOne, PositiveWeight
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
        """Return the share of each token's credit that is clipped, summed over tokens and paths. Scalar.

        The arguments say at which tokens the positive and the negative side are clipped. [W] each
        """
        import torch

        with torch.no_grad():
            # Tokens without credit are 0 / 0 and count as not clipped.
            clipped = self.s_plus * plus_is_clipped - self.s_minus * minus_is_clipped
            credit = self.s_plus - self.s_minus
            return (torch.where(credit > 0, clipped / credit, 0.0) * self.num_paths).sum()


def bounded_exp(log_ratio: "torch.Tensor") -> "torch.Tensor":
    """Return exp with the exponent clipped to `MAX_LOG_RATIO` either way."""
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
        """Return the loss of one packed row."""
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
        """Return the loss of one optimizer step, in float64."""
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
        """Return the credit of a tree's policy nodes under the weighting."""
        return CreditedTree(tree.tree, tree.annotations, credit(tree, self.weighting))

    def denominator(self, trees: Sequence[TrainingTree]) -> float:
        """Return the divisor of an optimizer step's loss: the number of trees, or the weighting's denominator."""
        if getattr(self.surrogate, "is_mean_over_trees", False):
            return float(len(trees))
        return denominator([tree.tree for tree in trees], self.weighting)

    def paths(self, trees: Sequence[TrainingTree]) -> PathCredit | None:
        """Return the trajectories of an optimizer step, if the surrogate is a sequence loss."""
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


@dataclass(frozen=True, slots=True)
class LossConfig(Config):
    """Settings and requirements of a loss, which is its own settings; the edges of a clip are 1 - clip_low and 1 + clip_high."""

    linear: ClassVar[bool] = False
    """Whether both signs of the advantage are treated alike."""
    sequence_loss: ClassVar[bool] = False
    """Whether the ratio is that of a whole trajectory."""


@dataclass(frozen=True, slots=True)
class GppoSurrogate(LossConfig):
    """L = -[S+ min(r, 1 + clip_high) + S- max(r, 1 - clip_low)], r = pi / old, with a gradient everywhere (arXiv 2508.07629).

    The paper's objective is min(r A, clip(r, (1 - clip_low) / sg(r) r, (1 + clip_high) / sg(r) r) A), where sg stops
    gradients. Its value is that of `ClippedSurrogate` without a dual clip; its gradient is -F A d ln pi with

        F = 1 + clip_high    where r > 1 + clip_high and A > 0,
            1 - clip_low     where r < 1 - clip_low and A < 0,
            r                elsewhere.

    The first two hold for any ratio, however extreme; in the third case the gradient is 0 beyond `MAX_LOG_RATIO`.
    """

    name: Literal["gppo"] = field(default="gppo", kw_only=True)
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row; `clip_fraction`: share of the credit whose gradient is bounded."""
        ratio, high, low = inputs.ratio, 1 + self.clip_high, 1 - self.clip_low
        plus = bounded_at(high, inputs.policy_logprobs).where(ratio > high, ratio)
        minus = bounded_at(low, inputs.policy_logprobs).where(ratio < low, ratio)
        loss = -(inputs.s_plus * plus + inputs.s_minus * minus).sum()
        return LossOutput(loss, {"clip_fraction": inputs.clip_fraction(ratio > high, ratio < low)})


def bounded_at(edge: float, policy_logprobs: "torch.Tensor") -> "torch.Tensor":
    """Return edge / sg(r) r, the value `edge` with the gradient edge d ln pi, whatever r is. [W] -> [W]"""
    return edge * (policy_logprobs - policy_logprobs.detach()).exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class CispoSurrogate(LossConfig):
    """L = -(S+ + S-) sg(clip(r, 1 - clip_low, 1 + clip_high)) ln pi, r = pi / old (MiniMax-M1, arXiv 2506.13585, equations 4 and 5).

    sg stops gradients: r scales the gradient of ln pi and has none itself. Both signs of the advantage are clipped at
    both edges, so the loss depends on S+ + S- only. The value of the loss means nothing by itself; at r = 1 its
    gradient is that of REINFORCE. Ratios beyond `MAX_LOG_RATIO` keep the gradient of the clipped weight.
    """

    linear = True

    name: Literal["cispo"] = "cispo"
    clip_low: InsideOne | None = None
    clip_high: PositiveWeight

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row; `clip_fraction`: share of tokens whose weight is clipped."""
        ratio = inputs.ratio.detach()
        low = None if self.clip_low is None else 1 - self.clip_low
        weight = ratio.clamp(min=low, max=1 + self.clip_high)
        loss = -((inputs.s_plus + inputs.s_minus) * weight * inputs.policy_logprobs).sum()
        clipped = weight != ratio
        return LossOutput(loss, {"clip_fraction": inputs.clip_fraction(clipped, clipped)})


@dataclass(frozen=True, slots=True)
class GspoSurrogate(LossConfig):
    """L = -sum_j w_j min(s_j A_j, clip(s_j, 1 - clip_low, 1 + clip_high) A_j) (arXiv 2507.18071, equation 5).

    s_j = exp(mean over the written tokens of trajectory j of ln(pi / old)) (equation 7), over the tokens of all its
    contexts. d L / d (sum of ln pi) = -w_j A_j s_j / |y_j| where j is not clipped, else 0. ln s_j is clipped to
    `MAX_LOG_RATIO`, beyond which the gradient is 0. A trajectory without written tokens has no ratio: it adds nothing,
    but stays in the denominator. Computed in numpy and float64, because the clip bounds lie within 1e-3 of 1.
    """

    sequence_loss = True

    name: Literal["gspo"] = field(default="gspo", kw_only=True)
    clip_low: InsideOne = 3e-4
    clip_high: PositiveWeight = 4e-4

    @property
    def needs_paths(self) -> bool:
        """True: see `SequenceLoss`."""
        return True

    def __call__(self, inputs: SequenceInputs) -> SequenceOutput:
        """Return the loss of one optimizer step; `clip_fraction`: share of trajectories that are clipped."""
        length = np.maximum(inputs.num_written, 1)
        mean = (inputs.policy_logprobs - inputs.old_logprobs) / length
        ratio = np.exp(np.clip(mean, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        credit = inputs.weights * inputs.advantages * (inputs.num_written > 0)
        too_high = (ratio > 1 + self.clip_high) & (credit > 0)
        too_low = (ratio < 1 - self.clip_low) & (credit < 0)
        clipped = too_high | too_low
        bounded = np.where(too_high, 1 + self.clip_high, np.where(too_low, 1 - self.clip_low, ratio))
        moves = ~clipped & (np.abs(mean) <= MAX_LOG_RATIO)
        return SequenceOutput(
            loss=float(-(credit * bounded).sum()),
            gradients=np.where(moves, -credit * ratio / length, 0.0),
            sums={"clip_fraction": float(clipped.sum())},
        )
