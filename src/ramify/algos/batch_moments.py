"""Mean and standard deviation over all written tokens of a rollout batch, from sums that can be added over ranks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ramify.algos.ops import Shared, along, leaf_weights, num_paths
from ramify.core.records import BatchSums, Floats
from ramify.core.tree import Node, Tree

RESOLUTION = 1e-6
"""A standard deviation below this fraction of the root mean square is a rounding error of the sums, and counts as 0."""


def token_weights(tree: Tree, shared: Shared) -> tuple[Floats, ...]:
    """The weight of each trajectory's copy of a written token in a mean over the batch. [G][T]

    1 under `repeat`, so that a shared token counts num_paths times; 1/d under `split`, so that it counts once; the
    leaf's mass under `mass`. Unlike loss weights, these do not depend on the length of a trajectory.
    """
    paths = num_paths(tree)

    def share(node: Node) -> Floats:
        return np.full(len(node.token_ids), 1 / paths[node.id] if shared == "split" else 1.0)

    return tuple(
        leaf * along(trajectory, share)
        for trajectory, leaf in zip(tree.trajectories, leaf_weights(tree, shared), strict=True)
    )


def sums_of(values: Iterable[Floats], weights: Iterable[Floats]) -> BatchSums:
    """Sums over arrays of the same shapes; the order of the arrays does not matter."""
    parts = [(w.sum(), w @ w, w @ x, w @ (x * x)) for x, w in zip(values, weights, strict=True)]
    return BatchSums(*(math.fsum(float(part[i]) for part in parts) for i in range(4)))


@dataclass(frozen=True, slots=True)
class BatchMoments:
    """Weighted mean and standard deviation; the latter is exactly 0 if all values are equal, up to rounding."""

    mean: float
    std: float

    @classmethod
    def of(cls, sums: BatchSums) -> "BatchMoments":
        """From the `sums_of` the whole batch.

        The sum of squares is divided by V1 - V2 / V1, V1 and V2 the sums of w and w^2: Bessel's correction for the
        effective count V1^2 / V2. The standard deviation is 0 for a single value and for an empty batch.
        """
        total = sums.w
        freedom = total - sums.ww / total if total > 0 else 0.0
        if freedom <= RESOLUTION * total:
            return cls(sums.wx / total if total > 0 else 0.0, 0.0)
        mean = sums.wx / total
        squares = sums.wxx - total * mean**2
        if squares <= RESOLUTION**2 * sums.wxx:
            return cls(mean, 0.0)
        return cls(mean, math.sqrt(squares / freedom))
