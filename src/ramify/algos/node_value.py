"""Advantages from the values of nodes: how much better a branch is than the branch above it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramify.algos.configs import EstimatorConfig
from ramify.algos.ops import PerGroup, Shared, along, leaf_weights, leaves_below, values
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, BatchSums, Floats
from ramify.core.tree import Node


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
        """Advantage of each token of each trajectory. [G][T]"""
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
    """Weighted mean; if all returns are equal, exactly that value."""
    least = returns.min()
    return float(least + np.average(returns - least, weights=weights))
