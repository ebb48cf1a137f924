"""What estimators share, and the small ones: Tree-GRPO's, and the values of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ramify.algos.kl import KlInReward
from ramify.algos.ops import Shared, along, leaf_weights, leaves_below, normalize, spread, values
from ramify.core.config import Config
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, BatchSums, Floats
from ramify.core.tree import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorConfig(Config):
    """Settings of an estimator: its requirements, and which tokens share an advantage."""

    needs_branches: ClassVar[bool] = False
    needs_roots: ClassVar[bool] = False
    """Whether a tree must have several roots."""
    per_node: ClassVar[bool] = False
    """Whether a shared token gets the same advantage from every trajectory through it."""
    per_trajectory: ClassVar[bool] = False
    """Whether all tokens of a trajectory get the same advantage, as a sequence loss needs."""
    needs_batch: ClassVar[bool] = False
    """Whether a group's advantages depend on the other groups of the batch."""

    name: str = ""

    @property
    def needs_group(self) -> bool:
        """Return True if a trajectory is compared with the others of its tree."""
        return True

    def build(self, shared: Shared, kl_coefficient: float) -> Estimator:
        """Return the estimator; with a coefficient above 0 the KL to the reference model is charged to the rewards."""
        estimator = self.estimator(shared)
        return KlInReward(estimator, kl_coefficient) if kl_coefficient else estimator

    def estimator(self, shared: Shared) -> Estimator:
        """Return the estimator for rewards that hold all penalties; each has its own, unless it overrides `build`."""
        raise NotImplementedError


class PerGroup:
    """An estimator that needs no batch statistics."""

    __slots__ = ()

    def batch_statistics(self, trees: Sequence[AnnotatedTree]) -> tuple[BatchSums, ...]:
        """Return nothing: groups are independent of each other."""
        del trees
        return ()


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
        """Return the advantage of each trajectory, the same at all its tokens. [G][T]"""
        del statistics
        rewards, weights = tree.rewards, leaf_weights(tree.tree, self.shared)
        advantages = normalize(rewards, weights)
        below = leaves_below(tree.tree)
        for root in tree.tree.roots:
            leaves = below[root.id]
            advantages[leaves] += normalize([rewards[leaf] for leaf in leaves], weights[leaves])
        return spread(tree.tree, advantages)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeValueConfig(EstimatorConfig):
    """Mean reward below a token's branch, minus the mean reward below the branch above it."""

    needs_branches = True
    per_node = True

    name: Literal["node_value"] = "node_value"

    def estimator(self, shared: Shared) -> Estimator:
        """Return the estimator for rewards that hold all penalties."""
        return NodeValue(shared, **self.values())


@dataclass(frozen=True, slots=True)
class NodeValue(PerGroup, NodeValueConfig):
    """A_t = V(branch of t) - V(branch above), with V the mean of R over the leaves below.

    Consecutive nodes with the same leaves below are one branch; the topmost branch is that of the prompt. So all tokens
    of a root that never branched get R - mean(group), tokens above all leaves get 0, and along a path the advantages of
    its branches, each taken once, add up to R - V(prompt). A shared token gets the same advantage from every trajectory
    through it. With `shared = "mass"` V weighs each leaf by its mass.

    This is the local advantage of TreeRL (arXiv 2506.11902). TreeRL adds the global one, V(branch of t) - V(prompt),
    and divides the sum by the square root of the number of leaves below. We do neither: how much a shared token counts
    is up to the loss weights.
    """

    shared: Shared

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return the advantage of each token of each trajectory. [G][T]"""
        del statistics
        returns, weights = values(tree.rewards), leaf_weights(tree.tree, self.shared)
        below = leaves_below(tree.tree)
        value = {key: _mean(returns[leaves], weights[leaves]) for key, leaves in below.items()}
        gain: dict[str, float] = {}
        for node in tree.tree.nodes:
            # Parents come before their children.
            if node.parent is None:
                gain[node.id] = 0.0
            elif len(below[node.id]) == len(below[node.parent]):
                gain[node.id] = gain[node.parent]
            else:
                gain[node.id] = value[node.id] - value[node.parent]

        def of_node(node: Node) -> Floats:
            return np.full(len(node.token_ids), gain[node.id])

        return tuple(along(trajectory, of_node) for trajectory in tree.tree.trajectories)


def _mean(returns: Floats, weights: Floats) -> float:
    """Return the weighted mean; if all returns are equal, exactly that value."""
    least = returns.min()
    return float(least + np.average(returns - least, weights=weights))
