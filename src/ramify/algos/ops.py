"""Operations that estimators and losses share: leaves below a node, leaf masses, group advantages, statistics of a batch."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ramify.core.errors import DataError
from ramify.core.records import BatchSums, Floats, Ints, Reward
from ramify.core.tree import Node, Trajectory, Tree

Shared: TypeAlias = Literal["repeat", "split", "mass"]
"""How much a token that d trajectories share counts: d times, once, or by the masses of its leaves."""

STD_FLOOR = 1e-6
"""Added to a standard deviation before dividing by it."""


def num_paths(tree: Tree) -> dict[str, int]:
    """Return the number of trajectories through each node, by node id."""
    counts = dict.fromkeys(tree.by_id, 0)
    for trajectory in tree.trajectories:
        for node in trajectory.nodes:
            counts[node.id] += 1
    return counts


def leaves_below(tree: Tree) -> dict[str, Ints]:
    """Return the indices of the trajectories through each node, by node id. [d] each"""
    indices: dict[str, list[int]] = {node.id: [] for node in tree.nodes}
    for i, trajectory in enumerate(tree.trajectories):
        for node in trajectory.nodes:
            indices[node.id].append(i)
    return {key: np.array(leaves, dtype=np.int64) for key, leaves in indices.items()}


def leaf_masses(tree: Tree) -> Floats:
    """Return the mass of each trajectory: the product of 1 / children over the branch nodes of its path. [G]

    The start, which is the prompt as a rule, does not count as a branch node. So the masses below each root add up to 1,
    however often it branched.
    """
    masses = np.ones(len(tree.trajectories))
    for i, trajectory in enumerate(tree.trajectories):
        for node in trajectory.nodes[:-1]:
            if node.id != tree.start:
                masses[i] /= len(tree.children[node.id])
    return masses


def num_trained(tree: Tree) -> Ints:
    """Return the number of each trajectory's written tokens that lie below the tree's start. [G]"""
    above = sum(len(tree.by_id[node].token_ids) for node in tree.inherited_ids)
    return np.array([trajectory.num_written - above for trajectory in tree.trajectories], dtype=np.int64)


def effective_leaves(masses: Floats) -> float:
    """Return the effective number of leaves (Kish): (sum of masses)^2 / sum of squared masses; G if all masses are equal."""
    return float(masses.sum() ** 2 / (masses**2).sum())


def leaf_weights(tree: Tree, shared: Shared) -> Floats:
    """Return the weight of each trajectory in means over the group: its mass under `mass`, else 1. [G]"""
    return leaf_masses(tree) if shared == "mass" else np.ones(len(tree.trajectories))


def values(rewards: Sequence[Reward]) -> Floats:
    """Return the rewards as numbers. [G]

    Raises:
        DataError: One of them is not finite.
    """
    numbers = np.array([reward.value for reward in rewards], dtype=np.float64)
    if not np.isfinite(numbers).all():
        first = np.flatnonzero(~np.isfinite(numbers))[0]
        raise DataError(
            f"trajectory {first}: the reward function returned no finite number, but {numbers[first]}"
        )
    return numbers


def normalize(rewards: Sequence[Reward], masses: Floats) -> Floats:
    """Group advantages (R - mean) / (std + 1e-6), 0 if all rewards are equal. [G]

    Mean and standard deviation are weighted by `masses`. The sum of squares is divided by V1 - V2 / V1, V1 and V2 the
    sums of the masses and of their squares; for equal masses this is Bessel's correction.
    """
    returns = values(rewards)
    return centered(returns, masses) / (spread_of(returns, masses) + STD_FLOOR)


def centered(returns: Floats, masses: Floats) -> Floats:
    """Return the returns minus their weighted mean; exactly 0 if all are equal, without rounding errors. [G]"""
    if returns.min() == returns.max():
        return np.zeros_like(returns)
    difference: Floats = returns - np.average(returns, weights=masses)
    return difference


def spread_of(returns: Floats, masses: Floats) -> float:
    """Return the standard deviation of a group, weighted as in `normalize`; 0 for a group of one."""
    if len(returns) < 2:
        return 0.0
    total = masses.sum()
    freedom = total - (masses**2).sum() / total
    return float(np.sqrt((masses * centered(returns, masses) ** 2).sum() / freedom))


def by_node(trajectory: Trajectory, tokens: Floats) -> Iterator[tuple[Node, Floats]]:
    """Cut an array over a trajectory's written tokens at its policy nodes. [T] -> [N] each"""
    start = 0
    for node in trajectory.policy_nodes:
        stop = start + len(node.token_ids)
        yield node, tokens[start:stop]
        start = stop


def along(trajectory: Trajectory, of_node: Callable[[Node], Floats]) -> Floats:
    """Concatenate arrays over the tokens of a trajectory's policy nodes. [N] each -> [T]"""
    return np.concatenate([np.empty(0), *(of_node(node) for node in trajectory.policy_nodes)])


def spread(tree: Tree, advantages: Floats) -> tuple[Floats, ...]:
    """Give each trajectory's advantage to all its written tokens. [G] -> [G][T]"""
    return tuple(
        np.full(trajectory.num_written, advantage)
        for trajectory, advantage in zip(tree.trajectories, advantages, strict=True)
    )


RESOLUTION = 1e-6
"""A standard deviation below this fraction of the root mean square is a rounding error of the sums, and counts as 0."""


def token_weights(tree: Tree, shared: Shared) -> tuple[Floats, ...]:
    """Return the weight of each trajectory's copy of a written token in a mean over the batch. [G][T]

    1 under `repeat`, so that a shared token counts num_paths times; 1/d under `split`, so that it counts once; the
    leaf's mass under `mass`; 0 above the tree's start. Unlike loss weights, these do not depend on the length of a
    trajectory.
    """
    paths = num_paths(tree)

    def share(node: Node) -> Floats:
        if node.id in tree.inherited_ids:
            return np.zeros(len(node.token_ids))
        return np.full(len(node.token_ids), 1 / paths[node.id] if shared == "split" else 1.0)

    return tuple(
        leaf * along(trajectory, share)
        for trajectory, leaf in zip(tree.trajectories, leaf_weights(tree, shared), strict=True)
    )


def sums_of(values: Iterable[Floats], weights: Iterable[Floats]) -> BatchSums:
    """Return the sums over arrays of the same shapes; the order of the arrays does not matter."""
    parts = [(w.sum(), w @ w, w @ x, w @ (x * x)) for x, w in zip(values, weights, strict=True)]
    return BatchSums(*(math.fsum(float(part[i]) for part in parts) for i in range(4)))


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Weighted mean and standard deviation; the latter is exactly 0 if all values are equal, up to rounding."""

    mean: float
    std: float

    @classmethod
    def of(cls, sums: BatchSums) -> "BatchStatistics":
        """Return them from the `sums_of` the whole batch.

        The sum of squares is divided by V1 - V2 / V1, V1 and V2 the sums of w and w^2: Bessel's correction for the
        effective count V1^2 / V2. The standard deviation is 0 for a single value and for an empty batch.
        """
        total = sums.w
        freedom = total - sums.ww / total if total > 0 else 0.0
        if freedom <= RESOLUTION * total:
            return cls(sums.wx / total if total > 0 else 0.0, 0.0)
        mean = sums.wx / total
        squares = sums.wxx - total * mean**2
        # A difference of two large sums. Below this it is their rounding, which a division by its root would turn into advantages.
        if squares <= RESOLUTION**2 * sums.wxx:
            return cls(mean, 0.0)
        return cls(mean, math.sqrt(squares / freedom))
