"""GRPO and its variants that differ only in settings: group-relative advantages, PPO's clipped surrogate.

paper                                        advantage (GroupRelative)        aggregation      clip
GRPO (arXiv 2402.03300, equations 3, 19)     scale std, pooled                sequence_mean    eps both sides
Dr. GRPO (arXiv 2503.20783, section 3.2)     scale none, pooled               fixed_length     eps both sides
DAPO (arXiv 2503.14476, equation 8)          scale std, pooled                token_mean       eps_low < eps_high
RLOO (arXiv 2402.14740, equation 7)          scale none, leave_subtree_out    fixed_length     eps both sides
ARPO (arXiv 2507.19849, section 3.2)         scale std, pooled, on a tree     token_mean       eps both sides
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ramify.algos.estimators import EstimatorConfig, PerGroup
from ramify.algos.losses import LossConfig, LossInputs, LossOutput
from ramify.algos.ops import (
    STD_FLOOR,
    Shared,
    along,
    centered,
    leaf_weights,
    leaves_below,
    spread,
    spread_of,
    values,
)
from ramify.core.config import AboveOne, InsideOne, PositiveWeight
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, BatchSums, Floats
from ramify.core.tree import Tree

if TYPE_CHECKING:
    import torch

Baseline: TypeAlias = Literal["pooled", "leave_subtree_out"]
"""What a reward is compared with: the mean over the whole group, or over the leaves that are not below the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(EstimatorConfig):
    """Relative to the group of a problem's leaves (GRPO, Dr. GRPO, DAPO, RLOO, ARPO).

    `scale`: divide by the group's standard deviation, or not (Dr. GRPO). `baseline`: the mean over the group, or over
    the leaves that are not below the token (in a flat group these are all others, which is RLOO).
    """

    per_trajectory = True

    name: Literal["group"] = "group"
    scale: Literal["std", "none"] = "std"
    baseline: Baseline = "pooled"

    def estimator(self, shared: Shared) -> Estimator:
        """Return the estimator for rewards that hold all penalties."""
        return GroupRelative(shared, **self.values())


@dataclass(frozen=True, slots=True)
class GroupRelative(PerGroup, GroupConfig):
    """Advantages relative to the group; the group is all leaves of a tree, from the prompt or from a branch.

    `pooled`: A_j = R_j - mean(R), the same at each token. This scales the gradient of a shared token by 1 - d/n (d of
    n leaves below it). `leave_subtree_out`: A_{j,t} = R_j - mean of R over the leaves not below t, which avoids that.
    In a flat group it is leave-one-out, R_j - mean of the others (RLOO). A token above all leaves has nothing to be
    compared with: A = 0. `scale = "std"` divides by std + 1e-6 of the group (with Bessel's correction).

    With `shared = "mass"` means and deviations weigh each leaf by its mass, so that a root that branched often does
    not dominate the baseline. In a group of one, or of equal rewards, all advantages are 0.
    """

    shared: Shared

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return the advantage of each token of each trajectory. [G][T]"""
        del statistics
        weights, returns = leaf_weights(tree.tree, self.shared), values(tree.rewards)
        scale = 1.0 if self.scale == "none" else spread_of(returns, weights) + STD_FLOOR
        # Equal rewards go the other way, where they give exactly 0: means of equal numbers may differ in the last bit.
        if self.baseline == "leave_subtree_out" and returns.min() < returns.max():
            return _against_the_others(tree.tree, returns, weights, scale)
        return spread(tree.tree, centered(returns, weights) / scale)


def _against_the_others(tree: Tree, returns: Floats, weights: Floats, scale: float) -> tuple[Floats, ...]:
    baseline = {}
    for key, below in leaves_below(tree).items():
        others = weights.copy()
        others[below] = 0
        baseline[key] = np.average(returns, weights=others) if others.any() else None
    return tuple(
        along(
            trajectory,
            lambda node, own=own: np.full(  # type: ignore[misc]
                len(node.token_ids), 0.0 if (b := baseline[node.id]) is None else (own - b) / scale
            ),
        )
        for trajectory, own in zip(tree.trajectories, returns, strict=True)
    )


@dataclass(frozen=True, slots=True)
class ClippedSurrogate(LossConfig):
    """L = -[S+ min(r, 1 + clip_high) + S- max(r, 1 - clip_low)], r = pi / old (arXiv 1707.06347, equation 7).

    With a dual clip c the negative side is S- min(max(r, 1 - clip_low), c) (arXiv 1912.09729, equation 5).
    """

    name: Literal["clip"] = field(default="clip", kw_only=True)
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2
    dual_clip: AboveOne | None = None

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row; `clip_fraction`: share of a token's credit that is clipped."""
        ratio = inputs.ratio
        plus = ratio.clamp(max=1 + self.clip_high)
        minus = clipped_below(ratio, self.clip_low, self.dual_clip)
        loss = -(inputs.s_plus * plus + inputs.s_minus * minus).sum()
        return LossOutput(loss, {"clip_fraction": inputs.clip_fraction(plus != ratio, minus != ratio)})


def clipped_below(ratio: "torch.Tensor", clip_low: float, dual_clip: float | None) -> "torch.Tensor":
    """Return the factor of S- in a clipped surrogate: min(max(r, 1 - clip_low), dual_clip). [W] -> [W]"""
    clipped = ratio.clamp(min=1 - clip_low)
    return clipped if dual_clip is None else clipped.clamp(max=dual_clip)
