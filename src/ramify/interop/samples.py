"""Advantages of samples that another trainer holds: each sample names its place in the tree, and all of a group make the tree."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ramify.algos.ops import Shared, token_weights
from ramify.api.tables import algorithm_section
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Problem
from ramify.core.protocols import Estimator
from ramify.core.records import NO_ANNOTATIONS, AnnotatedTree, Floats, Reward
from ramify.core.tree import (
    Node,
    NodePath,
    Source,
    StopReason,
    Trajectory,
    Tree,
    TreeKey,
    make_tree,
    node_id,
    tree_path,
)

Lineage: TypeAlias = tuple[tuple[str, int], ...]
"""The policy's nodes on the way to a leaf, as (id, number of tokens). A tool's node has an id too, and none here."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory in another trainer.

    Attributes:
        lineage: Its nodes. Samples of a group that share a node name the same id.
        reward: Of the whole trajectory.
        token_rewards: What of it was paid at each written token; empty: nothing is known. [T]
    """

    lineage: Lineage
    reward: float
    token_rewards: Floats | tuple[()] = ()


def lineage_of(trajectory: Trajectory) -> Lineage:
    """Return the lineage of a trajectory of ours."""
    return tuple((node.id, len(node.token_ids)) for node in trajectory.policy_nodes)


def flat_lineage(index: int, turns: Iterable[int]) -> Lineage:
    """Return the lineage of sample `index` of a group in which nothing is shared, from the tokens of its turns."""
    sizes = tuple(turns) or (0,)
    return tuple((node_id((index, *(0, 0) * turn)), size) for turn, size in enumerate(sizes))


def parse_lineage(text: str) -> Lineage:
    """Read a lineage such as "0:40 0.0.1:12".

    Raises:
        DataError: The text is none.
    """
    try:
        pairs = [part.split(":") for part in text.split()]
        lineage = tuple((node_id(tree_path(name)), int(size)) for name, size in pairs)
    except ValueError:
        lineage = ()
    if not lineage or any(not name or size < 0 for name, size in lineage):
        raise DataError(
            f'lineage {text!r:.80}: expected node ids with numbers of tokens, as in "0:40 0.0.1:12"'
        )
    return lineage


def format_lineage(lineage: Lineage) -> str:
    """Return the text that `parse_lineage` reads."""
    return " ".join(f"{name}:{size}" for name, size in lineage)


@dataclass(frozen=True, slots=True)
class SampleCredit:
    """An algorithm's advantages for samples.

    Attributes:
        estimator: Of the algorithm.
        shared: Its weight of shared tokens. A trainer's loss adds up all copies of a shared token, so an advantage is
            multiplied by the weight of its copy.
    """

    estimator: Estimator
    shared: Shared

    @classmethod
    def of(cls, algorithm: Any, *, has_batch: bool = True) -> "SampleCredit":  # noqa: ANN401 - a name, an object or a table
        """Return the advantages of an algorithm; all else that it says remains that of the other trainer.

        `has_batch`: the trainer passes the groups of a step together.

        Raises:
            ConfigError: It is none, or its advantages need values that no sample has.
        """
        section = algorithm_section(algorithm)
        needs = (
            ("entropy_advantage", section.entropy_advantage is not None, "needs entropies of the tokens"),
            ("advantage", section.advantage == "hard", '"hard" needs a loss that adds up each token once'),
            ("estimator", section.estimator.needs_batch and not has_batch, "needs all groups of a step"),
        )
        for key, is_set, reason in needs:
            if is_set:
                raise ConfigError(
                    f"algorithm.{key}: {reason}, which another trainer does not pass. Remove it or choose another."
                )
        return cls(section.estimator.build(section.shared, kl_coefficient=0.0), section.shared)

    def advantages(self, groups: Sequence[Sequence[Sample]]) -> list[list[Floats]]:
        """Return the weighted advantage of each written token of each sample of each group. [groups][G][T]

        Raises:
            DataError: The samples of a group make no tree, or a reward is not finite.
        """
        trees = [_tree_of(group) for group in groups]
        orders = [_order(tree, group) for tree, group in zip(trees, groups, strict=True)]
        scored = [
            AnnotatedTree(tree, tuple(_reward(group[index]) for index in order), NO_ANNOTATIONS)
            for tree, group, order in zip(trees, groups, orders, strict=True)
        ]
        statistics = self.estimator.batch_statistics(scored)
        result = []
        for tree, order in zip(scored, orders, strict=True):
            values = self.estimator.advantages(tree, statistics)
            weighted = [a * w for a, w in zip(values, token_weights(tree.tree, self.shared), strict=True)]
            result.append([weighted[order.index(position)] for position in range(len(order))])
        return result


def _tree_of(group: Sequence[Sample]) -> Tree:
    """Return the tree whose leaves are the samples."""
    sizes: dict[NodePath, int | None] = {(): None}
    leaves = {tree_path(sample.lineage[-1][0]) for sample in group}
    for name, size in (pair for sample in group for pair in sample.lineage):
        path = tree_path(name)
        if sizes.setdefault(path, size) != size:
            raise DataError(f"node {name}: one sample says {sizes[path]} tokens, another {size}")
    for path in list(sizes):
        # What stands between two nodes of the policy was written by a tool.
        for length in range(1, len(path)):
            sizes.setdefault(path[:length], None)
    nodes = [
        Node(
            id=node_id(path),
            path=path,
            parent=node_id(path[:-1]) if path else None,
            source=Source.PROMPT if not path else Source.TOOL if size is None else Source.POLICY,
            token_ids=(0,) * (size or 0),
            text="",
            behavior_logprobs=(0.0,) * (size or 0),
            stop=StopReason.ANSWERED if path in leaves else None,
        )
        for path, size in sizes.items()
    ]
    try:
        return make_tree(Problem("samples", (), ()), TreeKey(0, 0), nodes)
    except ValueError as error:
        raise DataError(f"the samples of a group make no tree: {error}") from None


def _order(tree: Tree, group: Sequence[Sample]) -> list[int]:
    """Return the index of the sample of each trajectory."""
    by_leaf = {sample.lineage[-1][0]: index for index, sample in enumerate(group)}
    order = [by_leaf[trajectory.leaf.id] for trajectory in tree.trajectories]
    if len(order) != len(group):
        raise DataError(f"{len(group)} samples end at {len(order)} leaves. Name each leaf once in a group.")
    for trajectory, index in zip(tree.trajectories, order, strict=True):
        if lineage_of(trajectory) != group[index].lineage:
            raise DataError(f"sample {index} of a group leaves out a node above {trajectory.leaf.id}")
    return order


def _reward(sample: Sample) -> Reward:
    """Return the reward with what was paid before the end as events of the nodes."""
    if not len(sample.token_rewards):
        return Reward(sample.reward, {})
    ends = np.cumsum([size for _, size in sample.lineage])
    parts = np.split(np.asarray(sample.token_rewards, dtype=np.float64), ends[:-1])
    return Reward(
        sample.reward,
        {},
        {name: float(part.sum()) for (name, _), part in zip(sample.lineage, parts, strict=True)},
    )
