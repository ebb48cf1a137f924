"""Facts of one tree that estimators and losses share: leaves below a node, leaf masses, credit of a node.

Credit turns advantages A[trajectory, token] into four numbers for each unique token, such that any clipped
token-level surrogate that looks at the sign of A alone is the same as a sum over trajectories.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from ramify.core.records import Floats, NodeCredit, Reward
from ramify.core.tree import Node, Tree

Shared: TypeAlias = Literal["repeat", "split", "mass"]
"""How much a token counts that d trajectories share: d times, once, or by the masses of its leaves."""

Sharing: TypeAlias = Literal["soft", "hard"]
"""Whether a shared token sees each trajectory's advantage (soft) or their mean (hard)."""

Credit: TypeAlias = Mapping[str, NodeCredit]
"""Credit of each policy node of a tree, by node id."""


def num_paths(tree: Tree) -> dict[str, int]:
    """Trajectories through each node, by node id."""
    counts = dict.fromkeys(tree.by_id, 0)
    for trajectory in tree.trajectories:
        for node in trajectory.nodes:
            counts[node.id] += 1
    return counts


def leaf_masses(tree: Tree) -> Floats:
    """Mass of each trajectory: the product of 1 / children over the branch nodes of its path. [G]

    Each root carries 1 (the fan-out of the prompt is no branch), so that sums of masses over a root's leaves do
    not depend on how often it branched.
    """
    masses = np.ones(len(tree.trajectories))
    for i, trajectory in enumerate(tree.trajectories):
        for node in trajectory.nodes[1:-1]:
            masses[i] /= len(tree.children[node.id])
    return masses


def effective_leaves(masses: Floats) -> float:
    """Independent leaves that weighted ones are worth: (sum of masses)^2 / sum of squares; G when all are equal."""
    return float(masses.sum() ** 2 / (masses**2).sum())


def normalize(rewards: Sequence[Reward], masses: Floats) -> Floats:
    """Group advantages (R - mean) / (std + 1e-6), zero where all rewards are equal. [G]

    Mean and standard deviation are weighted by `masses`; the variance is divided by V1 - V2 / V1 (sums of masses
    and of their squares), which for equal masses is Bessel's correction.
    """
    values = np.array([reward.value for reward in rewards], dtype=np.float64)
    total = masses.sum()
    freedom = total - (masses**2).sum() / total
    if len(values) < 2 or values.min() == values.max():
        return np.zeros_like(values)
    centered = values - (masses * values).sum() / total
    advantages: Floats = centered / (np.sqrt((masses * centered**2).sum() / freedom) + 1e-6)
    return advantages


def spread(tree: Tree, advantages: Floats) -> tuple[Floats, ...]:
    """Give each trajectory's advantage to every token that the policy wrote on it. [G] -> [G][T]"""
    return tuple(
        np.full(trajectory.num_written, advantage)
        for trajectory, advantage in zip(tree.trajectories, advantages, strict=True)
    )


def credit(
    tree: Tree, advantages: Sequence[Floats], shared: Shared, sharing: Sharing
) -> dict[str, NodeCredit]:
    """Add up the credit of all trajectories through each policy node, by node id.

    Loss weights w: 1 for `repeat`, 1/d for `split` (d trajectories through the token), the leaf's mass for
    `mass`; with W = sum w, soft: S+ = sum w max(A, 0), S- = sum w min(A, 0); hard: S+ = W max(A', 0) and
    S- = W min(A', 0), A' the mean of A over the d leaves, weighted by mass under `mass` (ARPO, arXiv 2507.19849,
    section 3.2).

    Args:
        tree: The tree.
        advantages: One array for each trajectory, with a number for each written token. [G][T]
        shared: Loss weight of shared tokens.
        sharing: Soft or hard.

    Raises:
        ValueError: A trajectory's array has not one number for each written token.
    """
    paths = num_paths(tree)
    masses = leaf_masses(tree)
    stacked: dict[str, list[Floats]] = {}
    leaves: dict[str, list[int]] = {}
    for i, trajectory in enumerate(tree.trajectories):
        if len(advantages[i]) != trajectory.num_written:
            raise ValueError(
                f"trajectory {trajectory.leaf.id!r}: {len(advantages[i])} advantages for "
                f"{trajectory.num_written} written tokens"
            )
        for node, part in _parts(trajectory.policy_nodes, advantages[i]):
            stacked.setdefault(node.id, []).append(part)
            leaves.setdefault(node.id, []).append(i)
    return {
        key: _node_credit(np.stack(parts), _weights(shared, masses[leaves[key]]), paths[key], sharing)
        for key, parts in stacked.items()
    }


def _parts(nodes: Iterable[Node], values: Floats) -> Iterable[tuple[Node, Floats]]:
    start = 0
    for node in nodes:
        stop = start + len(node.token_ids)
        yield node, values[start:stop]
        start = stop


def _weights(shared: Shared, masses: Floats) -> Floats:
    """Loss weights of the trajectories through a node, as a column. [d, 1]"""
    match shared:
        case "repeat":
            weights = np.ones_like(masses)
        case "split":
            weights = np.full_like(masses, 1 / len(masses))
        case "mass":
            weights = masses
    return weights[:, None]


def _node_credit(advantages: Floats, weights: Floats, paths: int, sharing: Sharing) -> NodeCredit:
    """Shapes: advantages [d, N], weights [d, 1]."""
    total = float(weights.sum())
    if sharing == "hard":
        # Weights that are equal over the leaves (repeat, split) give the plain mean.
        mean = (weights * advantages).sum(0) / total
        s_plus, s_minus = total * np.maximum(mean, 0), total * np.minimum(mean, 0)
    else:
        s_plus = (weights * np.maximum(advantages, 0)).sum(0)
        s_minus = (weights * np.minimum(advantages, 0)).sum(0)
    size = advantages.shape[1]
    return NodeCredit(s_plus, s_minus, np.full(size, total), np.full(size, float(paths)))


def token_denominator(credits: Iterable[Credit]) -> float:
    """Sum of `weight` over all written tokens, dead groups included: the denominator of a token mean."""
    return sum(float(node.weight.sum()) for tree in credits for node in tree.values())
