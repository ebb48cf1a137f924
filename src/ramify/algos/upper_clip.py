"""An asymmetric clip: only the credit of good tokens is clipped."""

from dataclasses import dataclass, field
from typing import Literal

from ramify.algos.configs import LossConfig
from ramify.algos.losses import LossInputs, LossOutput
from ramify.core.config import PositiveWeight


@dataclass(frozen=True, slots=True)
class UpperClipSurrogate(LossConfig):
    """L = -[S+ min(r, 1 + clip_high) + S- r], r = pi / old."""

    name: Literal["upper_clip"] = field(default="upper_clip", kw_only=True)
    clip_high: PositiveWeight = 0.2

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss, summed over the tokens of a row; `clip_fraction`: share of a token's credit that is clipped."""
        ratio = inputs.ratio
        plus = ratio.clamp(max=1 + self.clip_high)
        loss = -(inputs.s_plus * plus + inputs.s_minus * ratio).sum()
        return LossOutput(loss, {"clip_fraction": inputs.clip_fraction(plus != ratio, ratio.isnan())})
