"""The schema of an algorithm: advantages, loss, penalties, corrections. Papers are recipes over these parts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ramify.config.bounds import (
    AboveOne,
    FromOne,
    InsideOne,
    PositiveFraction,
    PositiveWeight,
    Tokens,
)
from ramify.config.schema_parts import Section


class GroupEstimator(Section):
    """Relative to the group of a problem's leaves (GRPO, Dr. GRPO, DAPO, RLOO, ARPO).

    `scale`: divide by the group's standard deviation, or not (Dr. GRPO). `baseline`: the mean over the group, or over
    the leaves that are not below the token (in a flat group these are all others, which is RLOO).
    """

    name: Literal["group"]
    scale: Literal["std", "none"] = "std"
    baseline: Literal["pooled", "leave_subtree_out"] = "pooled"


class ReinforcePlusPlusEstimator(Section):
    """Returns-to-go, whitened over the whole batch; `group_mean` subtracts the group's mean first."""

    name: Literal["reinforce_pp"]
    group_mean: bool = False


class TreeGrpoEstimator(Section):
    """Advantage within a root's subtree plus advantage within the group."""

    name: Literal["tree_grpo"]


class NodeValueEstimator(Section):
    """Mean reward below a token's branch, minus the mean reward below the branch above it."""

    name: Literal["node_value"]


EstimatorSection = Annotated[
    GroupEstimator | ReinforcePlusPlusEstimator | TreeGrpoEstimator | NodeValueEstimator,
    Field(discriminator="name"),
]


class ClipLoss(Section):
    """PPO's clipped surrogate; `dual_clip` bounds it where the advantage is negative."""

    name: Literal["clip"]
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2
    dual_clip: AboveOne | None = None


class StopGradientClipLoss(Section):
    """AEPO's clip: above the upper edge the gradient is bounded, not zero."""

    name: Literal["aepo_clip"]
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2
    dual_clip: AboveOne | None = None


class GppoLoss(Section):
    """GPPO: outside both edges the gradient is bounded, not zero."""

    name: Literal["gppo"]
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2


class CispoLoss(Section):
    """CISPO: the clipped ratio is a weight on the logprob; without `clip_low` there is no lower edge."""

    name: Literal["cispo"]
    clip_low: InsideOne | None = None
    clip_high: PositiveWeight


class GspoLoss(Section):
    """GSPO: one ratio for a whole trajectory, the geometric mean over its tokens."""

    name: Literal["gspo"]
    clip_low: InsideOne = 3e-4
    clip_high: PositiveWeight = 4e-4


LossSection = Annotated[
    ClipLoss | StopGradientClipLoss | GppoLoss | CispoLoss | GspoLoss, Field(discriminator="name")
]


class EntropyAdvantageSection(Section):
    """AEPO's entropy-aware advantage: a factor clip(1 + weight z, 0.5, 2), z the standardized entropy of the token.

    `source`: the engine's entropies of all tokens (behavior), or those of a pass of the learner (annotate).
    """

    weight: PositiveWeight = 0.2
    source: Literal["behavior", "annotate"] = "behavior"


class KlSection(Section):
    """A KL penalty towards the model that the run started from.

    In the loss: k2, k3 (as published, biased) or k3_ratio. In the reward: k1.
    """

    place: Literal["loss", "reward"]
    estimator: Literal["k1", "k2", "k3", "k3_ratio"]
    coefficient: PositiveWeight

    @model_validator(mode="after")
    def _acting(self) -> "KlSection":
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                'estimator: "k1" in the loss has no gradient in expectation; use k2, k3 or k3_ratio, or place = "reward"'
            )
        if self.place == "reward" and self.estimator != "k1":
            raise ValueError(f'estimator: expected "k1" with place = "reward", got {self.estimator!r}')
        return self


class CorrectionSection(Section):
    """Importance weights old / behavior, for an engine whose logprobs differ from the learner's.

    `truncate` clips a weight at `cap`; `mask` sets weights outside [floor, cap] to 0.
    """

    level: Literal["token", "sequence"]
    kind: Literal["truncate", "mask"]
    cap: FromOne = 2.0
    floor: PositiveFraction | None = None

    @model_validator(mode="after")
    def _acting(self) -> "CorrectionSection":
        if self.kind == "truncate" and self.floor is not None:
            raise ValueError('floor: acts with kind = "mask" only; leave it out')
        if self.floor == self.cap:
            raise ValueError("floor: expected a number below cap, or every weight but 1 is masked")
        return self


class AlgorithmSection(Section):
    """How rewards become a gradient.

    `shared`: how often a shared token counts (repeat: once for each trajectory; split: once; mass: unbiased).
    `advantage`: soft (each trajectory's own) or hard (their mean on shared tokens).
    `aggregation`: mean over tokens, over trajectories, or over `fixed_length` tokens per trajectory.
    `truncated`: trajectories that a limit on tokens, calls or time cut off are trained on, masked, or penalised for
    their length (`shape`, which also penalises answers within `overlong_margin` tokens of the limit).
    `old`: the ratio's denominator: the engine's logprobs, or the learner's own from a pass before the first update.
    `max_gap`: largest logprob mismatch between engine and learner that a run with `old = "behavior"` accepts.
    """

    estimator: EstimatorSection
    loss: LossSection
    shared: Literal["repeat", "split", "mass"] = "repeat"
    advantage: Literal["soft", "hard"] = "soft"
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    fixed_length: Tokens | None = None
    truncated: Literal["train", "mask", "shape"] = "train"
    overlong_margin: Tokens | None = None
    old: Literal["behavior", "recompute"] = "behavior"
    max_gap: PositiveWeight | None = None
    correction: CorrectionSection | None = None
    entropy_advantage: EntropyAdvantageSection | None = None
    kl: KlSection | None = None
    entropy_bonus: PositiveWeight | None = None

    @model_validator(mode="after")
    def _acting(self) -> "AlgorithmSection":
        _belongs(
            "fixed_length",
            self.fixed_length,
            'aggregation = "fixed_length"',
            self.aggregation == "fixed_length",
        )
        _belongs("overlong_margin", self.overlong_margin, 'truncated = "shape"', self.truncated == "shape")
        if self.correction is not None and self.old == "behavior":
            raise ValueError(
                'correction: with old = "behavior" the weight old / behavior is 1; set old = "recompute" or leave it out'
            )
        if self.max_gap is not None and self.old == "recompute":
            raise ValueError('max_gap: acts with old = "behavior" only; leave it out')
        if self.advantage == "hard":
            self._hard_differs()
        if self.loss.name == "gspo":
            self._whole_paths()
        return self

    def _hard_differs(self) -> None:
        """Refuse hard advantages that give the same gradient as soft ones."""
        if self.estimator.name == "node_value":
            raise ValueError(
                'advantage: estimator "node_value" gives all trajectories through a token the same, so "hard" cannot act; '
                "leave it out"
            )
        if self.loss.name == "cispo" and self.hard_is_soft_where_linear:
            raise ValueError(
                'advantage: loss "cispo" clips both signs alike, so "hard" is the same as "soft"; leave it out'
            )

    @property
    def hard_is_soft_where_linear(self) -> bool:
        """Whether hard and soft advantages give the same gradient for a loss that is linear in the advantage.

        They differ if the trajectories through a token have different weights.
        """
        level = None if self.correction is None else self.correction.level
        return self.aggregation != "sequence_mean" and level != "sequence"

    def _whole_paths(self) -> None:
        """A sequence loss needs one advantage, one weight and one correction for each trajectory."""
        needs = (
            ("aggregation", self.aggregation == "sequence_mean", '"sequence_mean"'),
            ("shared", self.shared != "split", '"repeat" or "mass"'),
            ("advantage", self.advantage == "soft", '"soft"'),
            ("entropy_advantage", self.entropy_advantage is None, "none"),
            (
                "correction.level",
                self.correction is None or self.correction.level == "sequence",
                '"sequence"',
            ),
            ("estimator.name", self.estimator.name in ("group", "tree_grpo"), '"group" or "tree_grpo"'),
            ("estimator.baseline", getattr(self.estimator, "baseline", "pooled") == "pooled", '"pooled"'),
        )
        for key, right, expected in needs:
            if not right:
                raise ValueError(
                    f'{key}: expected {expected} with loss "gspo", whose ratio is that of a trajectory'
                )


def _belongs(key: str, value: object, where: str, is_there: bool) -> None:
    if is_there and value is None:
        raise ValueError(f"{key}: expected a value with {where}, found none")
    if not is_there and value is not None:
        raise ValueError(f"{key}: acts with {where} only; leave it out")
