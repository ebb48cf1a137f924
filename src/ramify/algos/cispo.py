"""CISPO: the clipped ratio is a weight on the logprob, so that no token is dropped (MiniMax-M1, arXiv 2506.13585)."""

from dataclasses import dataclass
from typing import Literal

from ramify.algos.configs import LossConfig
from ramify.algos.losses import LossInputs, LossOutput
from ramify.core.config import InsideOne, PositiveWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class CispoSurrogate(LossConfig):
    """L = -(S+ + S-) sg(clip(r, 1 - clip_low, 1 + clip_high)) ln pi, r = pi / old (equations 4 and 5).

    sg stops gradients: r scales the gradient of ln pi and has none itself. Both signs of the advantage are clipped at
    both edges, so the loss depends on S+ + S- only. The value of the loss means nothing by itself; at r = 1 its
    gradient is that of REINFORCE. Ratios beyond `MAX_LOG_RATIO` keep the gradient of the clipped weight.
    """

    linear = True

    name: Literal["cispo"] = "cispo"
    clip_low: InsideOne | None = None
    clip_high: PositiveWeight

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss, summed over the tokens of a row; `clip_fraction`: share of tokens whose weight is clipped."""
        ratio = inputs.ratio.detach()
        low = None if self.clip_low is None else 1 - self.clip_low
        weight = ratio.clamp(min=low, max=1 + self.clip_high)
        loss = -((inputs.s_plus + inputs.s_minus) * weight * inputs.policy_logprobs).sum()
        clipped = weight != ratio
        return LossOutput(loss, {"clip_fraction": inputs.clip_fraction(clipped, clipped)})
