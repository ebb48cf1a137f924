"""Pieces of a tree that are computed together: all of it, runs of its paths, or one context of one path."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from ramify.algos.ops import leaves_below
from ramify.core.records import Ints
from ramify.core.tree import Node, Tree


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a tree's contexts, each from its first token.

    Attributes:
        nodes: In depth-first order, with all that stands before them in their contexts.
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


def one_context_each(tree: Tree) -> Iterator[Piece]:
    """A piece for each context of each trajectory; a context that several share comes once for each of them."""
    segments = [segment for trajectory in tree.trajectories for segment in trajectory.segments]
    return _pieces(tree, [{node.id for node in segment.nodes} for segment in segments])


def _runs(tree: Tree, token_budget: int) -> list[set[str]]:
    """Nodes of consecutive trajectories whose unique tokens fit into the budget."""
    runs: list[set[str]] = []
    inside: set[str] = set()
    size = 0
    for trajectory in tree.trajectories:
        added = sum(len(node.token_ids) for node in trajectory.nodes if node.id not in inside)
        if not runs or size + added > token_budget:
            inside = set()
            runs.append(inside)
            size, added = 0, sum(len(node.token_ids) for node in trajectory.nodes)
        inside.update(node.id for node in trajectory.nodes)
        size += added
    return runs


def _pieces(tree: Tree, runs: Sequence[Set[str]]) -> Iterator[Piece]:
    paths = leaves_below(tree)
    owned: set[str] = set()
    for ids in runs:
        yield Piece(
            nodes=tuple(node for node in tree.nodes if node.id in ids),
            trained=frozenset(ids) - owned,
            paths=paths,
        )
        owned |= ids
