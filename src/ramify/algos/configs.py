"""Settings of estimators and losses, apart from their code, because losses import torch and checking a recipe does not."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from ramify.core.config import AboveOne, Config, InsideOne, PositiveFraction, PositiveWeight, Switch

Baseline: TypeAlias = Literal["pooled", "leave_subtree_out"]
"""What a reward is compared with: the mean over the whole group, or over the leaves that are not below the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorConfig(Config):
    """What an estimator needs, and what its advantages are alike in."""

    needs_branches: ClassVar[bool] = False
    needs_roots: ClassVar[bool] = False
    """Whether a tree must have several roots."""
    per_node: ClassVar[bool] = False
    """Whether a shared token gets the same advantage from every trajectory through it."""
    per_trajectory: ClassVar[bool] = False
    """Whether all tokens of a trajectory get the same advantage, as a sequence loss needs."""

    name: str = ""

    @property
    def needs_group(self) -> bool:
        """Whether a trajectory is compared with the others of its tree."""
        return True


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlusConfig(EstimatorConfig):
    """Returns-to-go, whitened over the whole batch; `group_mean` subtracts the group's mean first."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    group_mean: Switch = False

    @property
    def needs_group(self) -> bool:
        """Whether the group's mean is subtracted."""
        return self.group_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrpoConfig(EstimatorConfig):
    """Advantage within a root's subtree plus advantage within the group."""

    needs_branches = True
    needs_roots = True
    per_trajectory = True

    name: Literal["tree_grpo"] = "tree_grpo"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeValueConfig(EstimatorConfig):
    """Mean reward below a token's branch, minus the mean reward below the branch above it."""

    needs_branches = True
    per_node = True

    name: Literal["node_value"] = "node_value"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLevelConfig(EstimatorConfig):
    """The return from a turn on, compared with that of the same turn of the group's other trajectories.

    What the environment pays for a turn counts there, a turn later `discount` times as much, and so on. `scale`: divide by
    the standard deviation, or not.
    """

    name: Literal["turn_level"] = "turn_level"
    discount: PositiveFraction = 1.0
    scale: Literal["std", "none"] = "std"


@dataclass(frozen=True, slots=True)
class LossConfig(Config):
    """What a loss needs; the edges of a clip are 1 - clip_low and 1 + clip_high."""

    linear: ClassVar[bool] = False
    """Whether both signs of the advantage are treated alike."""
    sequence_loss: ClassVar[bool] = False
    """Whether the ratio is that of a whole trajectory."""


@dataclass(frozen=True, slots=True)
class ClipConfig(LossConfig):
    """PPO's clipped surrogate; `dual_clip` bounds it where the advantage is negative."""

    name: Literal["clip"] = field(default="clip", kw_only=True)
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2
    dual_clip: AboveOne | None = None


@dataclass(frozen=True, slots=True)
class StopGradientClipConfig(LossConfig):
    """AEPO's clip: above the upper edge the gradient is bounded, not zero."""

    name: Literal["aepo_clip"] = field(default="aepo_clip", kw_only=True)
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2
    dual_clip: AboveOne | None = None


@dataclass(frozen=True, slots=True)
class GppoConfig(LossConfig):
    """GPPO: outside both edges the gradient is bounded, not zero."""

    name: Literal["gppo"] = field(default="gppo", kw_only=True)
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CispoConfig(LossConfig):
    """CISPO: the clipped ratio is a weight on the logprob; without `clip_low` there is no lower edge."""

    linear = True

    name: Literal["cispo"] = "cispo"
    clip_low: InsideOne | None = None
    clip_high: PositiveWeight


@dataclass(frozen=True, slots=True)
class GspoConfig(LossConfig):
    """GSPO: one ratio for a whole trajectory, the geometric mean over its tokens."""

    sequence_loss = True

    name: Literal["gspo"] = field(default="gspo", kw_only=True)
    clip_low: InsideOne = 3e-4
    clip_high: PositiveWeight = 4e-4
