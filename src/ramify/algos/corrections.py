"""Importance weights for a rollout engine whose probabilities differ from the learner's.

name                            level      kind       source
truncated importance sampling   token      truncate   TIS: F. Yao and others, "Your efficient RL framework secretly
                                                      brings you off-policy RL training", 2025
masked importance sampling      sequence   mask       MIS: J. Liu, Y. Li and others, "When speed kills stability:
                                                      demystifying RL collapse from the training-inference mismatch", 2025

The other two combinations are the same rules at the other level. The MIS paper argues for the sequence level: a weight
for a single token does not correct the prefix before that token.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramify.algos.ops import along
from ramify.core.config import Config, FromOne, PositiveFraction
from ramify.core.errors import ConfigError, EngineError, TrainingError
from ramify.core.records import AnnotatedTree, Annotations, Floats
from ramify.core.tree import Node

MAX_EXPONENT = 700.0
"""Log-ratios are clipped here, because the exponential overflows at 709; every sensible cap lies far below."""


@dataclass(frozen=True, slots=True)
class ImportanceCorrection(Config):
    """rho = old / behavior, bounded: a constant factor of the advantage, not part of the clipped ratio pi / old.

    `token`: each written token's own ratio. `sequence`: the product of the ratios of all written tokens of the
    trajectory, the same at each of them. Tokens above the tree's start are not trained on: they count as ratio 1. `truncate`: min(rho, cap). `mask`: rho inside [floor, cap], both included, and
    0 outside; masked tokens stay in the denominator of the loss. A trajectory without written tokens has no weights.

    Attributes:
        level: Whether rho is the ratio of a token or of a sequence.
        kind: What happens to a ratio that is out of bounds.
        cap: Upper bound.
        floor: Lower bound of `mask`; None: 0.
    """

    level: Literal["token", "sequence"]
    kind: Literal["truncate", "mask"]
    cap: FromOne = 2.0
    floor: PositiveFraction | None = None

    def __post_init__(self) -> None:
        if self.kind == "truncate" and self.floor is not None:
            raise ValueError('floor: has no effect without kind = "mask". Remove it.')
        if self.floor == self.cap:
            raise ValueError("floor: expected a number below cap, or every weight but 1 is masked")

    def weights(self, tree: AnnotatedTree) -> tuple[Floats, ...]:
        """Return rho of each trajectory's written tokens. [G][T]

        Raises:
            ConfigError: A node has no logprobs of the learner (`annotations`).
            EngineError: A behavior logprob is not finite.
            TrainingError: A logprob of the learner is not finite.
        """
        above_start = tree.tree.inherited_ids

        def log_ratio(node: Node) -> Floats:
            return (
                np.zeros(len(node.token_ids))
                if node.id in above_start
                else _log_ratio(node, tree.annotations)
            )

        return tuple(self._bounded(along(trajectory, log_ratio)) for trajectory in tree.tree.trajectories)

    def _bounded(self, log_ratios: Floats) -> Floats:
        if self.level == "sequence":
            log_ratios = np.full(len(log_ratios), log_ratios.sum())
        ratios: Floats = np.exp(np.minimum(log_ratios, MAX_EXPONENT))
        if self.kind == "truncate":
            ratios[ratios > self.cap] = self.cap
        else:
            ratios[(ratios < (self.floor or 0.0)) | (ratios > self.cap)] = 0.0
        return ratios


def _log_ratio(node: Node, annotations: Annotations) -> Floats:
    if not node.token_ids:
        return np.empty(0)
    if node.id not in annotations:
        raise ConfigError(
            f'correction: node {node.id!r} has no logprobs of the learner. Set algorithm.old = "recompute"'
        )
    behavior, old = np.array(node.behavior_logprobs), annotations[node.id].old_logprobs
    if not np.isfinite(behavior).all():
        raise EngineError(f"node {node.id!r}: the engine gave a logprob that is not finite")
    if not np.isfinite(old).all():
        raise TrainingError(f"node {node.id!r}: the learner found a logprob that is not finite")
    difference: Floats = old - behavior
    return difference
