"""GSPO: one importance ratio for a whole trajectory (arXiv 2507.18071)."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ramify.algos.configs import LossConfig
from ramify.algos.losses import MAX_LOG_RATIO, SequenceInputs, SequenceOutput
from ramify.core.config import InsideOne, PositiveWeight


@dataclass(frozen=True, slots=True)
class GspoSurrogate(LossConfig):
    """L = -sum_j w_j min(s_j A_j, clip(s_j, 1 - clip_low, 1 + clip_high) A_j) (equation 5).

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
        """The loss of one optimizer step; `clip_fraction`: share of trajectories that are clipped."""
        length = np.maximum(inputs.num_written, 1)
        mean = (inputs.policy_logprobs - inputs.old_logprobs) / length
        ratio = np.exp(np.clip(mean, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        credit = inputs.weights * inputs.advantages * (inputs.num_written > 0)
        too_high = (ratio > 1 + self.clip_high) & (credit > 0)
        too_low = (ratio < 1 - self.clip_low) & (credit < 0)
        clipped = too_high | too_low
        held = np.where(too_high, 1 + self.clip_high, np.where(too_low, 1 - self.clip_low, ratio))
        moves = ~clipped & (np.abs(mean) <= MAX_LOG_RATIO)
        return SequenceOutput(
            loss=float(-(credit * held).sum()),
            gradients=np.where(moves, -credit * ratio / length, 0.0),
            sums={"clip_fraction": float(clipped.sum())},
        )
