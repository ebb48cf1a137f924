"""Tree-GRPO's advantage (arXiv 2509.21240): against the leaves of the same root, and against all leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.algos.ops import Shared, leaf_weights, leaves_below, normalize, spread
from ramify.algos.per_group import PerGroup
from ramify.core.records import Floats, Notes, Reward
from ramify.core.tree import Tree


@dataclass(frozen=True, slots=True)
class TreeGrpo(PerGroup):
    """A_j = A_intra + A_inter, each (R_j - mean) / (std + 1e-6) over a set of leaves (Tree-GRPO, arXiv 2509.21240).

    A_intra is over the leaves of j's own root, A_inter over all leaves of the problem: what the paper calls a tree is
    here one root's subtree, its group of trees our tree. Both are the same at every token. A root with a single leaf
    has A_intra = 0, and equal rewards in a set give exactly 0 there. A single root is counted twice: both sets are
    the same. With `shared = "mass"` means and deviations weigh each leaf by its mass.
    """

    shared: Shared

    def advantages(
        self, tree: Tree, rewards: Sequence[Reward], notes: Notes, sums: Mapping[str, float]
    ) -> tuple[Floats, ...]:
        """One array for each trajectory, the same number for each token. [G][T]"""
        del notes, sums
        weights = leaf_weights(tree, self.shared)
        advantages = normalize(rewards, weights)
        below = leaves_below(tree)
        for root in tree.children[""]:
            leaves = below[root.id]
            advantages[leaves] += normalize([rewards[leaf] for leaf in leaves], weights[leaves])
        return spread(tree, advantages)
