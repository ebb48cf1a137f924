"""AEPO's update (arXiv 2510.14545): entropy-aware advantages, and a clip that keeps a gradient above its upper edge."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ramify.algos.grpo import clipped_below
from ramify.algos.losses import LossConfig, LossInputs, LossOutput, bounded_at
from ramify.algos.ops import BatchStatistics, Shared, along, sums_of, token_weights
from ramify.core.config import AboveOne, InsideOne, PositiveWeight
from ramify.core.errors import ConfigError, TrainingError
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, Annotations, BatchSums, Floats
from ramify.core.tree import Node

MIN_FACTOR, MAX_FACTOR = 0.5, 2.0
"""Bounds of the factor: the lower one keeps the sign of every advantage, the upper one limits high entropies."""


@dataclass(frozen=True, slots=True)
class EntropyAwareAdvantage:
    """A(t) = A_inner(t) clip(1 + weight z_t, 0.5, 2), z_t = (H_t - mean H) / std H (AEPO, arXiv 2510.14545).

    H_t is the entropy of the distribution that token t was sampled from, in nats. The factor carries no gradient. Its
    clip is ours; the paper has none. Mean and standard deviation are over all written tokens of the whole rollout batch
    and all ranks, so they do not depend on mini-batches or packing. In them a token counts num_paths times under
    `repeat`, once under `split`, and by the masses of its leaves under `mass`; its weight in the loss does not matter.
    If all entropies are equal, the factor is 1.

    Attributes:
        inner: The estimator whose advantages are multiplied.
        shared: How often a shared token counts.
        weight: The paper's a, above 0; 0.2 in the release.
        source: `behavior`: entropies that the engine recorded (`Node.token_entropies`); `annotate`: entropies from the
            annotation pass.

    Raises:
        ConfigError: From `batch_statistics` and `advantages`: entropies are missing.
        TrainingError: From `batch_statistics` and `advantages`: an entropy is not finite.
    """

    inner: Estimator
    shared: Shared
    weight: float
    source: Literal["behavior", "annotate"]

    def batch_statistics(self, trees: Sequence[AnnotatedTree]) -> tuple[BatchSums, ...]:
        """Return the sums of the entropies, then those of the inner estimator."""
        entropies = [array for tree in trees for array in self._of(tree)]
        weights = [array for tree in trees for array in token_weights(tree.tree, self.shared)]
        return (sums_of(entropies, weights), *self.inner.batch_statistics(trees))

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return the advantage of each token of each trajectory. [G][T]"""
        own, *others = statistics
        whole = BatchStatistics.of(own)
        inner = self.inner.advantages(tree, others)
        if whole.std == 0:
            return inner
        return tuple(
            advantages
            * np.clip(1 + self.weight * (entropies - whole.mean) / whole.std, MIN_FACTOR, MAX_FACTOR)
            for advantages, entropies in zip(inner, self._of(tree), strict=True)
        )

    def _of(self, tree: AnnotatedTree) -> tuple[Floats, ...]:
        """Return the entropies of each trajectory's written tokens. [G][T]"""
        return tuple(
            along(trajectory, lambda node: self._of_node(node, tree.annotations))
            for trajectory in tree.tree.trajectories
        )

    def _of_node(self, node: Node, annotations: Annotations) -> Floats:
        if self.source == "behavior":
            entropies = np.array(node.token_entropies)
            missing = len(entropies) != len(node.token_ids)
            remedy = 'Have the engine keep the entropies of all tokens, or set entropy_advantage.source = "annotate"'
        else:
            annotated = annotations[node.id].entropies if node.id in annotations else None
            missing = annotated is None and len(node.token_ids) > 0
            entropies = np.empty(0) if annotated is None else annotated
            remedy = "Ask the annotation pass for entropies"
        if missing:
            raise ConfigError(f"entropy_advantage: node {node.id!r} has no entropies of its tokens. {remedy}")
        if not np.isfinite(entropies).all():
            raise TrainingError(
                f"node {node.id!r}: an entropy is not finite, so this batch cannot be trained on"
            )
        return entropies


@dataclass(frozen=True, slots=True)
class StopGradientClip(LossConfig):
    """L = -[S+ min(r, 1 + clip_high) + S- max(r, 1 - clip_low)], r = pi / old, with a bounded gradient above the clip.

    The paper's objective is min(r A, clip(r, 1 - clip_low, (1 + clip_high) / sg(r) r) A), where sg stops gradients. Its
    value is that of `ClippedSurrogate`; its gradient is -F A d ln pi with

        F = 1 + clip_high    where r > 1 + clip_high and A > 0 (at any ratio, however extreme),
            0                where r < 1 - clip_low and A < 0,
            r                elsewhere (0 beyond `MAX_LOG_RATIO`).

    A dual clip c caps the negative side at c, so F = 0 where r > c and A < 0, as in `ClippedSurrogate` (3 in the
    release). Where A > 0, a large r never stops the update: watch the metric `above_clip_high`.
    """

    name: Literal["aepo_clip"] = field(default="aepo_clip", kw_only=True)
    clip_low: InsideOne = 0.2
    clip_high: PositiveWeight = 0.2
    dual_clip: AboveOne | None = None

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row.

        `clip_fraction` is the share of a token's credit that is clipped or bounded, `above_clip_high` the share of
        tokens with positive credit and r > 1 + clip_high.
        """
        ratio, edge = inputs.ratio, 1 + self.clip_high
        above = ratio > edge
        # Not a clamp, whose gradient above the edge is 0: `where` takes that of the branch it takes.
        plus = bounded_at(edge, inputs.policy_logprobs).where(above, ratio)
        minus = clipped_below(ratio, self.clip_low, self.dual_clip)
        loss = -(inputs.s_plus * plus + inputs.s_minus * minus).sum()
        sums = {
            "clip_fraction": inputs.clip_fraction(above, minus != ratio),
            "above_clip_high": ((above & (inputs.s_plus > 0)) * inputs.num_paths).sum(),
        }
        return LossOutput(loss, sums)
