"""Pieces of a tree that are computed together: the whole of it, or runs of its paths when it is too large for a row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramify.algos.ops import leaves_below
from ramify.core.records import Ints
from ramify.core.tree import Node, Tree


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a tree's trajectories with everything above them.

    Attributes:
        nodes: In depth-first order, parents included.
        trained: Ids of the nodes that belong to this piece; the others are context that an earlier piece owns.
        paths: Numbers of the trajectories of the whole tree through each node, by node id. [d] each
    """

    nodes: tuple[Node, ...]
    trained: frozenset[str]
    paths: Mapping[str, Ints]

    @property
    def ids(self) -> frozenset[str]:
        """Of all nodes."""
        return frozenset(node.id for node in self.nodes)


def split(tree: Tree, token_budget: int) -> Iterator[Piece]:
    """The tree whole if it fits into `token_budget` tokens, else depth-first runs of whole paths that do.

    A path that is longer than the budget is a piece of its own: what is alive at a time grows with the depth of a
    tree, not with its size.
    """
    return _pieces(tree, _runs(tree, token_budget))


def one_path_each(tree: Tree) -> Iterator[Piece]:
    """A piece for each trajectory."""
    return _pieces(tree, [[i] for i in range(len(tree.trajectories))])


def _runs(tree: Tree, token_budget: int) -> list[list[int]]:
    """Consecutive trajectories whose unique tokens fit into the budget."""
    runs: list[list[int]] = []
    inside: set[str] = set()
    size = 0
    for i, trajectory in enumerate(tree.trajectories):
        added = sum(len(node.token_ids) for node in trajectory.nodes if node.id not in inside)
        if not runs or size + added > token_budget:
            runs.append([])
            inside = set()
            size, added = 0, sum(len(node.token_ids) for node in trajectory.nodes)
        runs[-1].append(i)
        inside.update(node.id for node in trajectory.nodes)
        size += added
    return runs


def _pieces(tree: Tree, runs: Sequence[Sequence[int]]) -> Iterator[Piece]:
    paths = leaves_below(tree)
    owned: set[str] = set()
    for run in runs:
        ids = {node.id for i in run for node in tree.trajectories[i].nodes}
        yield Piece(
            nodes=tuple(node for node in tree.nodes if node.id in ids),
            trained=frozenset(ids - owned),
            paths=paths,
        )
        owned |= ids
