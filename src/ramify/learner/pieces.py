"""The part of a tree that goes into a row: all of it, or one context of one path if a model cannot share prefixes."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from ramify.algos.ops import leaves_below
from ramify.core.records import Ints
from ramify.core.tree import Node, Tree


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a tree's contexts, each from its first token on.

    Attributes:
        nodes: The nodes in depth-first order, with all that precede them in their contexts.
        trained: Ids of the nodes that are trained in this piece; the others are context that an earlier piece trains.
        paths: Indices, in the whole tree, of the trajectories through each node, by node id. [d] each
    """

    nodes: tuple[Node, ...]
    trained: frozenset[str]
    paths: Mapping[str, Ints]

    @property
    def ids(self) -> frozenset[str]:
        """Ids of all nodes."""
        return frozenset(node.id for node in self.nodes)


def whole(tree: Tree) -> Piece:
    """The piece that is the whole tree."""
    return next(_pieces(tree, [{node.id for node in tree.nodes}]))


def one_context_each(tree: Tree) -> Iterator[Piece]:
    """A piece for each context of each trajectory; a context that several trajectories share comes once for each."""
    segments = [segment for trajectory in tree.trajectories for segment in trajectory.segments]
    return _pieces(tree, [{node.id for node in segment.nodes} for segment in segments])


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
