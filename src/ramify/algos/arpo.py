"""ARPO's advantage estimation (arXiv 2507.19849, section 3.2): one group for all leaves of a tree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ramify.algos.ops import Shared, leaf_masses, normalize, spread
from ramify.core.records import Floats, Reward
from ramify.core.tree import Tree


@dataclass(frozen=True, slots=True)
class ArpoEstimator:
    """Group advantages over all leaves, whether they started at the prompt or at a branch.

    With `shared = "mass"` mean and standard deviation weigh each leaf by its mass, so that a root that branched
    often does not pull the baseline; otherwise leaves count alike, as published.
    """

    shared: Shared

    def moments(self, trees: Sequence[Tree], rewards: Sequence[Sequence[Reward]]) -> Mapping[str, float]:
        """Nothing is shared between groups."""
        del trees, rewards
        return {}

    def advantages(
        self, tree: Tree, rewards: Sequence[Reward], sums: Mapping[str, float]
    ) -> tuple[Floats, ...]:
        """One array for each trajectory, the same number for each token. [G][T]"""
        del sums
        masses = leaf_masses(tree) if self.shared == "mass" else np.ones(len(rewards))
        return spread(tree, normalize(rewards, masses))
