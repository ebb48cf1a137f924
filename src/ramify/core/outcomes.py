"""Trees without the trajectories whose outcomes say nothing about the policy.

Whatever learns from a tree, or reports what the policy can do, takes it from here. So it sees the tree that would have been
grown without those trajectories: other masses, groups and denominators follow from its shape.
"""

from collections.abc import Iterable
from dataclasses import replace

from ramify.core.records import ScoredTree


def counted(scored: ScoredTree) -> ScoredTree | None:
    """Return the tree without the trajectories that do not count (`Reward.counts`); None if none counts.

    A node stays if a trajectory through it does, under the same id. If all count, the tree is returned as it is.
    """
    if all(reward.counts for reward in scored.rewards):
        return scored
    tree = scored.tree
    pairs = zip(tree.trajectories, scored.rewards, strict=True)
    remaining = [(trajectory, reward) for trajectory, reward in pairs if reward.counts]
    if not remaining:
        return None
    ids = {node.id for trajectory, _ in remaining for node in trajectory.nodes}
    smaller = replace(
        tree,
        nodes=tuple(node for node in tree.nodes if node.id in ids),
        decisions=tuple(decision for decision in tree.decisions if decision.node in ids),
    )
    return ScoredTree(smaller, tuple(reward for _, reward in remaining))


def counted_trees(batch: Iterable[ScoredTree]) -> tuple[ScoredTree, ...]:
    """Return the trees of a batch without what does not count, and without those of which nothing is left."""
    return tuple(tree for scored in batch if (tree := counted(scored)) is not None)
