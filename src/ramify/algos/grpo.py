"""GRPO: advantages relative to the group, and PPO's clipped surrogate (arXiv 2402.03300, arXiv 1707.06347)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ramify.algos.losses import LossInputs, LossOutput
from ramify.algos.ops import normalize, spread
from ramify.core.errors import ConfigError
from ramify.core.records import Floats, Reward
from ramify.core.tree import Tree

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """A = (R - mean) / (std + 1e-6) over the leaves of a tree, std with Bessel's correction.

    A group of one, or of equal rewards, has no advantage.
    """

    def moments(self, trees: Sequence[Tree], rewards: Sequence[Sequence[Reward]]) -> Mapping[str, float]:
        """Nothing is shared between groups."""
        del trees, rewards
        return {}

    def advantages(
        self, tree: Tree, rewards: Sequence[Reward], sums: Mapping[str, float]
    ) -> tuple[Floats, ...]:
        """One array for each trajectory, the same number for each token. [G][T]"""
        del sums
        return spread(tree, normalize(rewards, np.ones(len(rewards))))


@dataclass(frozen=True, slots=True)
class ClippedSurrogate:
    """L = -[S+ min(r, 1 + clip_high) + S- max(r, 1 - clip_low)], r = pi / old.

    With a dual clip c the negative side is S- min(max(r, 1 - clip_low), c) (arXiv 1912.09729). The logarithm of
    the ratio is held within 20 nats, beyond which there is no gradient.

    Attributes:
        clip_low: 0 <= clip_low < 1.
        clip_high: At least 0.
        dual_clip: Above 1; None switches it off.

    Raises:
        ConfigError: A value out of these ranges.
    """

    clip_low: float
    clip_high: float
    dual_clip: float | None

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1 or self.clip_high < 0:
            raise ConfigError(
                f"clip_low = {self.clip_low}, clip_high = {self.clip_high}: expected 0 <= clip_low < 1, clip_high >= 0"
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(f"dual_clip = {self.dual_clip}: expected a number above 1, or none")

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Sum over the tokens; `clip_fraction` is the share of a token's credit that is clipped."""
        log_ratio = inputs.policy_logprobs - inputs.old_logprobs
        ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
        low, high = 1 - self.clip_low, 1 + self.clip_high
        plus, minus = ratio.clamp(max=high), ratio.clamp(min=low)
        if self.dual_clip is not None:
            minus = minus.clamp(max=self.dual_clip)
        loss = -(inputs.s_plus * plus + inputs.s_minus * minus).sum()
        with torch.no_grad():
            clipped = inputs.s_plus * (plus != ratio) - inputs.s_minus * (minus != ratio)
            credit = inputs.s_plus - inputs.s_minus
            share = torch.where(credit > 0, clipped / credit, 0.0)
            sums = {"clip_fraction": (share * inputs.num_paths).sum()}
        return LossOutput(loss, sums)
