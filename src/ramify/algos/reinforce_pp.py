"""REINFORCE++ (arXiv 2501.03262): returns-to-go, whitened over the whole batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramify.algos.estimators import EstimatorConfig
from ramify.algos.kl import k1_along
from ramify.algos.ops import (
    STD_FLOOR,
    BatchStatistics,
    Shared,
    centered,
    leaf_weights,
    sums_of,
    token_weights,
    values,
)
from ramify.core.config import Switch
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, Annotations, BatchSums, Floats
from ramify.core.tree import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlusConfig(EstimatorConfig):
    """Returns-to-go, whitened over the whole batch; `group_mean` subtracts the group's mean first."""

    needs_batch = True

    name: Literal["reinforce_pp"] = "reinforce_pp"
    group_mean: Switch = False

    @property
    def needs_group(self) -> bool:
        """Return True if the group's mean is subtracted."""
        return self.group_mean

    def build(self, shared: Shared, kl_coefficient: float) -> Estimator:
        """Return the estimator. It charges each token the KL of itself and of later tokens, and no reward."""
        return ReinforcePlusPlus(shared, **self.values(), kl_coefficient=kl_coefficient)


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlus(ReinforcePlusPlusConfig):
    """A_t = (G_t - mean G) / (std G + 1e-6), G_t = R - beta sum_{i >= t} k1_i (REINFORCE++, arXiv 2501.03262).

    k1_i = ln(pi_old / pi_ref) of written token i of the trajectory. Mean and standard deviation (with Bessel's
    correction for the effective count) are over the written tokens of the whole rollout batch and all ranks. In them a
    token counts num_paths times under `repeat` and by the masses of its leaves under `mass`; under `split` it counts
    once, each of its d returns with weight 1/d. Without a KL penalty all tokens of a trajectory get the same advantage.

    If all returns of the batch are equal, up to a millionth of their root mean square, or the batch has one token, all
    advantages are exactly 0. A group of equal rewards has advantages other than 0, because it is compared with the
    batch, unless `group_mean` is set.

    Attributes:
        shared: How often a shared token counts.
        group_mean: Subtract the group's mean reward first, weighted by mass under `mass` (REINFORCE++-baseline). In a
            group of one, or of equal rewards, every reward is then exactly 0.
        kl_coefficient: beta, at least 0; above 0 the annotation pass must provide reference logprobs.

    Raises:
        ConfigError: From `batch_statistics` and `advantages`: reference logprobs are missing.
    """

    shared: Shared
    kl_coefficient: float = 0.0

    def batch_statistics(self, trees: Sequence[AnnotatedTree]) -> tuple[BatchSums, ...]:
        """Return the sums of the returns of all tokens."""
        returns = [array for tree in trees for array in self._returns(tree)]
        weights = [array for tree in trees for array in token_weights(tree.tree, self.shared)]
        return (sums_of(returns, weights),)

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return the advantage of each token of each trajectory. [G][T]"""
        (sums,) = statistics
        whole = BatchStatistics.of(sums)
        returns = self._returns(tree)
        if whole.std == 0:
            return tuple(np.zeros(len(array)) for array in returns)
        return tuple((array - whole.mean) / (whole.std + STD_FLOOR) for array in returns)

    def _returns(self, tree: AnnotatedTree) -> tuple[Floats, ...]:
        """Return the return G_t of each trajectory's written tokens. [G][T]"""
        finals = values(tree.rewards)
        if self.group_mean:
            finals = centered(finals, leaf_weights(tree.tree, self.shared))
        return tuple(
            np.full(trajectory.num_written, final) - self._penalty_to_go(trajectory, tree.annotations)
            for trajectory, final in zip(tree.tree.trajectories, finals, strict=True)
        )

    def _penalty_to_go(self, trajectory: Trajectory, annotations: Annotations) -> Floats | float:
        if not self.kl_coefficient:
            return 0.0
        return self.kl_coefficient * np.cumsum(k1_along(trajectory, annotations)[::-1])[::-1]
