"""GPPO: PPO's clip that bounds the gradient of clipped tokens instead of dropping it (arXiv 2508.07629)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ramify.algos.configs import LossConfig
from ramify.algos.losses import LossInputs, LossOutput
from ramify.core.config import InsideOne, PositiveWeight

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class GppoSurrogate(LossConfig):
    """L = -[S+ min(r, 1 + clip_high) + S- max(r, 1 - clip_low)], r = pi / old, with a gradient everywhere.

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
        """The loss, summed over the tokens of a row; `clip_fraction`: share of the credit whose gradient is bounded."""
        ratio, high, low = inputs.ratio, 1 + self.clip_high, 1 - self.clip_low
        plus = held_at(high, inputs.policy_logprobs).where(ratio > high, ratio)
        minus = held_at(low, inputs.policy_logprobs).where(ratio < low, ratio)
        loss = -(inputs.s_plus * plus + inputs.s_minus * minus).sum()
        return LossOutput(loss, {"clip_fraction": inputs.clip_fraction(ratio > high, ratio < low)})


def held_at(edge: float, policy_logprobs: "torch.Tensor") -> "torch.Tensor":
    """edge / sg(r) r: the value `edge` with the gradient edge d ln pi, whatever r is. [W] -> [W]"""
    return edge * (policy_logprobs - policy_logprobs.detach()).exp()
