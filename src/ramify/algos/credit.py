"""Credit: from advantages A[trajectory, token] to four numbers for each unique token.

With loss weights w and corrections rho, both fixed before the forward pass, the four numbers are sums over the
trajectories through the token: S+ = sum w rho max(A, 0), S- = sum w rho min(A, 0), W = sum w, and the number of paths.
They are enough for any clipped token-level surrogate that depends on A through its sign and linearly: its sum over
unique tokens then equals the sum over trajectories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.ops import Shared, by_node, leaf_weights, num_paths, num_trained
from ramify.core.errors import ConfigError
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, Floats, NodeCredit, PathCredit, TrainingTree
from ramify.core.tree import Source, Tree

Sharing: TypeAlias = Literal["soft", "hard"]
"""Whether a shared token gets each trajectory's advantage (soft) or their mean (hard)."""

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean", "fixed_length"]
"""Mean over all tokens (DAPO, the released ARPO); mean over trajectories of each one's token mean (GRPO, the ARPO
paper); sum over tokens divided by one fixed length for all trajectories (Dr. GRPO)."""

Credit: TypeAlias = Mapping[str, NodeCredit]
"""Credit of each policy node of a tree, by node id."""


@dataclass(frozen=True, slots=True)
class Weighting:
    """How much each token of each trajectory counts in a loss.

    Attributes:
        shared: w is 1 for `repeat`, 1/d for `split` (d trajectories through the token), the leaf's mass for `mass`.
        sharing: See `Sharing`.
        aggregation: `sequence_mean` divides w by the written tokens of the whole path.
        fixed_length: L of `fixed_length`, tokens; None otherwise.
    """

    shared: Shared = "repeat"
    sharing: Sharing = "soft"
    aggregation: Aggregation = "token_mean"
    fixed_length: int | None = None


def trained(tree: Tree, masks_truncated: bool) -> npt.NDArray[np.bool_] | None:
    """Return which trajectories carry a loss; None: all. With `masks_truncated` those that a limit cut carry none. [G]"""
    carries_loss = [not (masks_truncated and trajectory.stop.truncated) for trajectory in tree.trajectories]
    return None if all(carries_loss) else np.array(carries_loss)


def training_trees(
    batch: Sequence[AnnotatedTree],
    estimator: Estimator,
    correction: ImportanceCorrection | None,
    masks_truncated: bool,
) -> tuple[TrainingTree, ...]:
    """Turn the rewards of a whole rollout batch into advantages, importance weights and a loss mask."""
    statistics = estimator.batch_statistics(batch)
    return tuple(
        TrainingTree(
            tree=tree.tree,
            annotations=tree.annotations,
            advantages=estimator.advantages(tree, statistics),
            rho=None if correction is None else correction.weights(tree),
            loss_mask=trained(tree.tree, masks_truncated),
        )
        for tree in batch
    )


def credit(tree: TrainingTree, weighting: Weighting) -> dict[str, NodeCredit]:
    """Add up the credit of all trajectories through each policy node, by node id.

    Soft: S+ and S- as defined for this module. Hard (ARPO, arXiv 2507.19849, section 3.2): A is replaced by its mean
    over the leaves below the node (weighted by mass under `mass`).

    Raises:
        ValueError: The length of an array is not the number of the trajectory's written tokens.
    """
    contributions: dict[str, _Contributions] = {}
    lengths = num_trained(tree.tree)
    masses = leaf_weights(tree.tree, weighting.shared)
    for i, trajectory in enumerate(tree.tree.trajectories):
        advantages = tree.advantages[i]
        rho = np.ones(trajectory.num_written) if tree.rho is None else tree.rho[i]
        for name, array in (("advantages", advantages), ("importance weights", rho)):
            if len(array) != trajectory.num_written:
                raise ValueError(
                    f"trajectory {trajectory.leaf.id!r}: {len(array)} {name} for {trajectory.num_written} written tokens"
                )
        scale = 1.0 / max(int(lengths[i]), 1) if weighting.aggregation == "sequence_mean" else 1.0
        keep = 1.0 if tree.loss_mask is None or tree.loss_mask[i] else 0.0
        for (node, a), (_, r) in zip(by_node(trajectory, advantages), by_node(trajectory, rho), strict=True):
            # What lies above the start is there to be read, not to be learned.
            mass = 0.0 if node.id in tree.tree.inherited_ids else masses[i] * keep
            contributions.setdefault(node.id, _Contributions([], [], [], [])).add(a, r, mass, scale)
    paths = num_paths(tree.tree)
    return {key: part.credit(weighting, paths[key]) for key, part in contributions.items()}


@dataclass(frozen=True, slots=True)
class _Contributions:
    """Contributions to one node, one entry per trajectory: arrays [N] in the first two, numbers in the others."""

    advantages: list[Floats]
    corrections: list[Floats]
    masses: list[float]
    scales: list[float]

    def add(self, advantages: Floats, corrections: Floats, mass: float, scale: float) -> None:
        self.advantages.append(advantages)
        self.corrections.append(corrections)
        self.masses.append(mass)
        self.scales.append(scale)

    def credit(self, weighting: Weighting, paths: int) -> NodeCredit:
        advantages, rho = np.stack(self.advantages), np.stack(self.corrections)  # [d, N]
        masses = np.array(self.masses)[:, None]
        weights = masses * np.array(self.scales)[:, None] / (paths if weighting.shared == "split" else 1)
        if weighting.sharing == "hard" and masses.any():
            advantages = np.broadcast_to((masses * advantages).sum(0) / masses.sum(), advantages.shape)
        corrected = weights * rho
        size = advantages.shape[1]
        return NodeCredit(
            s_plus=(corrected * np.maximum(advantages, 0)).sum(0),
            s_minus=(corrected * np.minimum(advantages, 0)).sum(0),
            # Without rho: W weighs penalties (KL, entropy), which importance weights leave as they are.
            weight=np.full(size, weights.sum()),
            num_paths=np.full(size, float(np.count_nonzero(masses))),
        )


def denominator(trees: Sequence[Tree], weighting: Weighting) -> float:
    """Return the number that the loss of an optimizer step is divided by, from all trajectories of its trees.

    token_mean: sum over tokens of W (which is num_paths, 1, or the sum of masses); sequence_mean: sum of leaf weights;
    fixed_length: sum of leaf weights times L (Dr. GRPO, arXiv 2503.20783). Dead groups, masked trajectories and masked
    corrections count as if they carried loss. Trajectories that do not count (`Reward.counts`) are in no such tree.
    """
    return sum(_tree_denominator(tree, weighting) for tree in trees)


def _tree_denominator(tree: Tree, weighting: Weighting) -> float:
    leaves = leaf_weights(tree, weighting.shared)
    match weighting.aggregation:
        case "sequence_mean":
            return float(leaves.sum())
        case "fixed_length":
            assert weighting.fixed_length is not None
            return float(leaves.sum()) * weighting.fixed_length
        case "token_mean":
            if weighting.shared == "split":
                own = (n for n in tree.nodes if n.source is Source.POLICY and n.id not in tree.inherited_ids)
                return float(sum(len(node.token_ids) for node in own))
            return float((leaves * num_trained(tree)).sum())


def path_credit(trees: Sequence[TrainingTree], weighting: Weighting) -> PathCredit:
    """Return the trajectories of an optimizer step, for a sequence loss.

    Args:
        trees: The trees of the step; advantages and importance weights are equal at all tokens of a trajectory.
        weighting: With `shared` `repeat` or `mass`, and `sharing` soft.

    Raises:
        ConfigError: `split` or hard: with them a trajectory has no weight or no advantage of its own. Or a tree goes on
            from a node of another one: a ratio of the whole trajectory would count what is not trained on.
        ValueError: Advantages or corrections differ between the tokens of one trajectory.
    """
    if weighting.shared == "split" or weighting.sharing == "hard":
        raise ConfigError("a loss on whole trajectories needs shared = repeat or mass, and advantage = soft")
    if any(tree.tree.inherited_ids for tree in trees):
        raise ConfigError(
            "a loss on whole trajectories cannot train trees that go on from another tree's node"
        )
    weights = []
    for tree in trees:
        weight = leaf_weights(tree.tree, weighting.shared)
        if tree.rho is not None:
            weight = weight * np.array([_constant(rho, 1.0) for rho in tree.rho])
        weights.append(weight if tree.loss_mask is None else weight * tree.loss_mask)
    lengths = [trajectory.num_written for tree in trees for trajectory in tree.tree.trajectories]
    return PathCredit(
        advantages=np.array([_constant(a, 0.0) for tree in trees for a in tree.advantages]),
        weights=np.concatenate([np.empty(0), *weights]),
        num_written=np.array(lengths, dtype=np.int64),
        tree=np.array([t for t, tree in enumerate(trees) for _ in tree.advantages], dtype=np.int64),
    )


def _constant(array: Floats, empty: float) -> float:
    if not len(array):
        return empty
    if (array != array[0]).any():
        raise ValueError(
            "a loss on whole trajectories needs one advantage and one correction for each of them"
        )
    return float(array[0])
