"""Tree-GRPO's advantage (arXiv 2509.21240): relative to the leaves of the same root, and to all leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.algos.configs import EstimatorConfig
from ramify.algos.ops import PerGroup, Shared, leaf_weights, leaves_below, normalize, spread
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, BatchSums, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrpoConfig(EstimatorConfig):
    """Advantage within a root's subtree plus advantage within the group."""

    needs_branches = True
    needs_roots = True
    per_trajectory = True

    name: Literal["tree_grpo"] = "tree_grpo"

    def estimator(self, shared: Shared) -> Estimator:
        """Return the estimator for rewards that hold all penalties."""
        return TreeGrpo(shared, **self.values())


@dataclass(frozen=True, slots=True)
class TreeGrpo(PerGroup, TreeGrpoConfig):
    """A_j = A_intra + A_inter, each (R_j - mean) / (std + 1e-6) over a set of leaves (Tree-GRPO, arXiv 2509.21240).

    A_intra is over the leaves of j's own root, A_inter over all leaves of the problem. (The paper's tree is the subtree
    of one root here, and its group of trees is our tree.) Both are the same at every token. In a set of one leaf, or of
    equal rewards, the term is exactly 0. With a single root both sets are the same, so the terms are equal. With
    `shared = "mass"` means and deviations weigh each leaf by its mass.
    """

    shared: Shared

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Advantage of each trajectory, the same at all its tokens. [G][T]"""
        del statistics
        rewards, weights = tree.rewards, leaf_weights(tree.tree, self.shared)
        advantages = normalize(rewards, weights)
        below = leaves_below(tree.tree)
        for root in tree.tree.roots:
            leaves = below[root.id]
            advantages[leaves] += normalize([rewards[leaf] for leaf in leaves], weights[leaves])
        return spread(tree.tree, advantages)
