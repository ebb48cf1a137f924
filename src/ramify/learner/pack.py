"""Packs trees into rows of unique tokens, for one forward pass each.

A row holds a whole tree, or one context of one trajectory if a model cannot share prefixes. Its tokens are in depth-first
order of the context forest: behind a node come the nodes that continue from its end, then those that continue from inside
it, the latest cut first. So the tokens of a node lie together, and a segment (a run of tokens without a fork) is followed
by exactly the tokens that have it in their context. A fresh context starts at position 0 without ancestors. The first token
of a branch is predicted by the last token before it in its context, wherever that is in the row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from ramify.algos.ops import leaves_below
from ramify.core.errors import DataError
from ramify.core.records import (
    CreditedTree,
    Floats,
    Ints,
    NodeAnnotations,
    NodeCredit,
    PackedRow,
    SegmentSpan,
    WrittenSpan,
)
from ramify.core.tree import Cut, Node, Source, Tree


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a tree that becomes one row: some of its contexts, each from its first token on.

    Attributes:
        sizes: For each node in the piece, how many of its first tokens are in it, by node id. All that stands before a
            node in its context is in the piece too.
        trained: Ids of the nodes that are trained in this piece; the others are context that an earlier piece trains.
        paths: Indices, in the whole tree, of the trajectories through each node, by node id. [d] each
    """

    sizes: Mapping[str, int]
    trained: frozenset[str]
    paths: Mapping[str, Ints]


def whole_tree(tree: Tree) -> Piece:
    """Return the whole tree as one piece."""
    return next(_make_pieces(tree, [{node.id: len(node.token_ids) for node in tree.nodes}]))


def cut_into_contexts(tree: Tree) -> Iterator[Piece]:
    """Return a piece for each context of each trajectory; a context that several trajectories share comes once for each."""
    segments = [segment for trajectory in tree.trajectories for segment in trajectory.segments]
    return _make_pieces(tree, [{node.id: size for node, size in segment.parts} for segment in segments])


def _make_pieces(tree: Tree, sizes_of_pieces: Sequence[Mapping[str, int]]) -> Iterator[Piece]:
    paths = leaves_below(tree)
    trained: set[str] = set()
    for sizes in sizes_of_pieces:
        # A node is trained in the first piece that has it, and only there.
        yield Piece(sizes, frozenset(sizes) - trained, paths)
        trained |= sizes.keys()


def cut_at_branches(tree: Tree, most_tokens: int) -> Iterator[Piece]:
    """Return pieces of at most `most_tokens` unique tokens, each of as many consecutive contexts as fit.

    A context that is longer is a piece of its own. What two pieces share is computed in both and trained in the first
    (`PackedRow.num_repeated`).
    """
    sizes_of_pieces: list[dict[str, int]] = []
    for trajectory in tree.trajectories:
        for segment in trajectory.segments:
            own = {node.id: size for node, size in segment.parts}
            last = sizes_of_pieces[-1] if sizes_of_pieces else {}
            union = {name: max(own.get(name, 0), last.get(name, 0)) for name in {**last, **own}}
            if sizes_of_pieces and sum(union.values()) <= most_tokens:
                sizes_of_pieces[-1] = union
            else:
                sizes_of_pieces.append(own)
    return _make_pieces(tree, sizes_of_pieces)


def pack(
    trees: Sequence[CreditedTree],
    token_budget: int,
    *,
    keep_dead: bool = False,
    share_prefixes: bool = True,
) -> tuple[PackedRow, ...]:
    """Pack all trees that have credit, as many whole trees per row as fit into `token_budget` tokens.

    A tree larger than the budget is a row of its own, which is computed in stages (`learner.forward`).

    Args:
        trees: See `tree_rows`.
        token_budget: See `tree_rows`.
        keep_dead: See `tree_rows`.
        share_prefixes: See `tree_rows`.

    Raises:
        ValueError: See `tree_rows`.
        DataError: See `tree_rows`.
    """
    rows = tree_rows(trees, token_budget, keep_dead=keep_dead, share_prefixes=share_prefixes)
    return join(rows, token_budget) if share_prefixes else rows


def tree_rows(
    trees: Sequence[CreditedTree],
    token_budget: int,
    *,
    keep_dead: bool,
    share_prefixes: bool,
    most_tokens: int | None = None,
) -> tuple[PackedRow, ...]:
    """Return one row for each tree that has credit, or several if the tree is cut.

    Trees without credit count in the denominator only.

    Args:
        trees: Trees of one optimizer step.
        token_budget: Maximum number of tokens in one forward pass.
        keep_dead: Keep nodes with weight but without advantage, because a KL term or an entropy bonus acts on them too.
        share_prefixes: False gives each context of each trajectory a row of its own, for models with layers that fold
            the context into a state (linear attention).
        most_tokens: Cut trees with more unique tokens at branch points, into rows of at most as many.

    Raises:
        ValueError: Credit and tree do not match, or a context starts with a written token.
        DataError: An advantage or a logprob is not a finite number; or a tree's tokens may differ from the sampled ones.
    """
    rows: list[PackedRow] = []
    first_path = 0
    for number, credited in enumerate(trees):
        tree, credit = credited.tree, credited.credit
        if credit.keys() != {node.id for node in tree.nodes if node.source is Source.POLICY}:
            raise ValueError(f"tree {number}: expected credit for each policy node and for no other node")
        if not all(node.exact_ids for node in tree.nodes):
            raise DataError(
                f"problem {tree.problem.id!r}: its tokens were encoded again from an engine's text and may differ from the "
                "sampled ones. Train on trees of an engine that returns token ids"
            )
        if not is_dead(credit.values(), keep_dead):
            pieces = _cut_tree(tree, share_prefixes, most_tokens)
            # Of a tree that is cut, pieces without credit of their own need not be computed.
            live = (
                p for p in pieces if not is_dead((credit[n] for n in p.trained if n in credit), keep_dead)
            )
            rows.extend(
                _fill_row(credited, piece, _RowBuilder(number, first_path, piece.trained, token_budget))
                for piece in live
            )
        first_path += len(tree.trajectories)
    return tuple(rows)


def _cut_tree(tree: Tree, share_prefixes: bool, most_tokens: int | None) -> Iterable[Piece]:
    if not share_prefixes:
        return cut_into_contexts(tree)
    if most_tokens is None or sum(len(node.token_ids) for node in tree.nodes) <= most_tokens:
        return (whole_tree(tree),)
    return cut_at_branches(tree, most_tokens)


def is_dead(credits: Iterable[NodeCredit], keep_weighted: bool = False) -> bool:
    """Return True if no token of these nodes has credit, so that their loss and its gradient are zero."""
    return not any(
        node.s_plus.any() or node.s_minus.any() or (keep_weighted and node.weight.any()) for node in credits
    )


def join(rows: Sequence[PackedRow], token_budget: int) -> tuple[PackedRow, ...]:
    """Join rows, in order, into rows of at most `token_budget` tokens; a larger row stays alone."""
    groups: list[list[PackedRow]] = []
    room = 0
    for row in rows:
        size = len(row.token_ids)
        if not groups or size > room:
            groups.append([])
            room = token_budget
        groups[-1].append(row)
        room -= size
    return tuple(_join_group(group) for group in groups)


def _fill_row(credited: CreditedTree, piece: Piece, row: "_RowBuilder") -> PackedRow:
    """Add the nodes of a piece to an empty row, depth-first in its context forest."""
    tree, credit = credited.tree, credited.credit
    forest = _ContextForest.of(tree, piece)
    ends: dict[tuple[str, int], _End] = {}
    # The top of the stack comes next in the row, hence the reversals.
    stack = list(reversed(forest.roots))
    while stack:
        node = stack.pop()
        origin = forest.origins.get(node.id)
        before = _START if origin is None else ends[origin]
        ends.update(row.add(node, before, forest.continuations[node.id]))
        if node.id in credit and node.id in piece.trained and node.token_ids:
            row.mark_written(
                node, before.last, credit[node.id], credited.annotations[node.id], piece.paths[node.id]
            )
        # By ascending offset, so that what continues from the node's end is on top.
        for _, children in sorted(forest.continuations[node.id].items()):
            stack.extend(reversed(children))
    return row.finish()


@dataclass(frozen=True, slots=True)
class _ContextForest:
    """The contexts of a piece as a forest: the node that each node continues from.

    Attributes:
        roots: The nodes that begin a context.
        origins: For each other node, the id of the node that it continues from, and the number of that node's tokens
            before it.
        continuations: For each node, the nodes that continue from it, by the number of its tokens before them. Its size
            in the piece is always a key, with an empty list if nothing continues from its end.
    """

    roots: tuple[Node, ...]
    origins: Mapping[str, tuple[str, int]]
    continuations: Mapping[str, Mapping[int, Sequence[Node]]]

    @classmethod
    def of(cls, tree: Tree, piece: Piece) -> "_ContextForest":
        """Read the contexts of the piece's nodes; nodes that continue from the same token are in the order of their paths."""
        inside = [node for node in tree.nodes if node.id in piece.sizes]
        continuations: dict[str, dict[int, list[Node]]] = {
            node.id: {piece.sizes[node.id]: []} for node in inside
        }
        origins: dict[str, tuple[str, int]] = {}
        roots = []
        for node in inside:
            if node.parent is None or node.context == "fresh":
                roots.append(node)
                continue
            origin, size = node.parent, piece.sizes.get(node.parent, 0)
            if isinstance(node.context, Cut):
                origin, size = node.context.node, node.context.tokens
            origins[node.id] = origin, size
            continuations[origin].setdefault(size, []).append(node)
        return cls(tuple(roots), origins, continuations)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a context within a row.

    Attributes:
        segment: Index of its last segment; -1: it is empty.
        last: Index of its last token in the row; -1: it is empty.
        depth: Its number of tokens, which is the position of the next one.
        forks: True if what comes next must begin a segment of its own, because more than one node continues from here.
    """

    segment: int
    last: int
    depth: int
    forks: bool


_START = _End(segment=-1, last=-1, depth=0, forks=True)


@dataclass(slots=True)
class _RowBuilder:
    """A row under construction: first each node's tokens (`add`), then, if they are trained, their credit (`mark_written`)."""

    tree: int
    first_path: int
    trained: Set[str]
    token_budget: int
    tokens: list[int] = field(default_factory=list)
    positions: list[Ints] = field(default_factory=list)
    segments: list[SegmentSpan] = field(default_factory=list)
    predictor: list[Ints] = field(default_factory=list)
    written: list[Ints] = field(default_factory=list)
    spans: list[WrittenSpan] = field(default_factory=list)
    credits: list[NodeCredit] = field(default_factory=list)
    behavior: list[Floats] = field(default_factory=list)
    old: list[Floats] = field(default_factory=list)
    ref: list[Floats] = field(default_factory=list)
    num_written: int = 0
    num_repeated: int = 0

    def add(
        self, node: Node, before: _End, continuations: Mapping[int, Sequence[Node]]
    ) -> dict[tuple[str, int], _End]:
        """Append the tokens of a node that the piece has; they continue from `before`.

        Returns:
            By node id and number of its tokens, the end of the context wherever nodes continue from this one.
        """
        size = max(continuations)
        ends: dict[tuple[str, int], _End] = {}
        start, done = len(self.tokens), 0
        self.tokens.extend(node.token_ids[:size])
        self.positions.append(np.arange(before.depth, before.depth + size))
        if node.id not in self.trained:
            self.num_repeated += size
        # One segment up to each offset that nodes continue from.
        for offset, children in sorted(continuations.items()):
            # Inside the node, its own remaining tokens are one more continuation.
            forks = len(children) + (offset < size) != 1
            if offset == done:
                before = replace(before, forks=before.forks or forks)
            else:
                segment = self._add_segment(before, start + done, offset - done)
                before = _End(segment, start + offset - 1, before.depth + offset - done, forks)
            ends[node.id, offset] = before
            done = offset
        return ends

    def _add_segment(self, before: _End, start: int, size: int) -> int:
        """Extend the segment of `before`, or begin a new one if the context forks there; returns its index."""
        if before.forks:
            self.segments.append(SegmentSpan(before.segment, start, start + size))
            return len(self.segments) - 1
        span = self.segments[before.segment]
        self.segments[before.segment] = SegmentSpan(span.parent, span.start, start + size)
        return before.segment

    def mark_written(
        self, node: Node, before: int, credit: NodeCredit, annotations: NodeAnnotations, paths: Ints
    ) -> None:
        """Mark the last added node as written by the policy; the token at row index `before` predicts its first token."""
        size = len(node.token_ids)
        if before < 0:
            raise ValueError(
                f"node {node.id!r}: its context starts with a response token, so no token predicts it"
            )
        behavior, old = np.array(node.behavior_logprobs), annotations.old_logprobs
        parts = (credit.s_plus, credit.s_minus, credit.weight, credit.num_paths, behavior, old)
        if any(len(part) != size for part in parts):
            raise ValueError(
                f"node {node.id!r}: credit and logprobs of {', '.join(f'{len(p)}' for p in parts)} tokens, expected {size}"
            )
        names = (
            "an advantage",
            "an advantage",
            "a weight",
            "num_paths",
            "a sampled logprob",
            "an old logprob",
        )
        for name, part in zip(names, parts, strict=True):
            if not np.isfinite(part).all():
                raise DataError(
                    f"node {node.id!r} of tree {self.tree}: {name} is not a finite number, so this step is not taken"
                )
        written = np.arange(len(self.tokens) - size, len(self.tokens))
        predictor = written - 1
        predictor[0] = before
        self.written.append(written)
        self.predictor.append(predictor)
        span = WrittenSpan(
            self.tree, node.id, self.num_written, self.num_written + size, paths + self.first_path
        )
        self.spans.append(span)
        self.num_written += size
        self.credits.append(credit)
        self.behavior.append(behavior)
        self.old.append(old)
        if annotations.ref_logprobs is not None:
            self.ref.append(annotations.ref_logprobs)

    def finish(self) -> PackedRow:
        """Return the finished row."""
        return PackedRow(
            token_ids=np.array(self.tokens, dtype=np.int64),
            positions=_concatenate_ints(self.positions),
            segments=tuple(self.segments),
            written=_concatenate_ints(self.written),
            predictor=_concatenate_ints(self.predictor),
            spans=tuple(self.spans),
            s_plus=_concatenate_floats([c.s_plus for c in self.credits]),
            s_minus=_concatenate_floats([c.s_minus for c in self.credits]),
            weight=_concatenate_floats([c.weight for c in self.credits]),
            num_paths=_concatenate_floats([c.num_paths for c in self.credits]),
            behavior_logprobs=_concatenate_floats(self.behavior),
            old_logprobs=_concatenate_floats(self.old),
            ref_logprobs=_concatenate_floats(self.ref) if self.ref else None,
            num_repeated=self.num_repeated,
            token_budget=self.token_budget,
        )


def _join_group(rows: Sequence[PackedRow]) -> PackedRow:
    if len(rows) == 1:
        return rows[0]
    offsets = np.cumsum([0, *(len(row.token_ids) for row in rows)])[:-1]
    return PackedRow(
        token_ids=_concatenate_ints([row.token_ids for row in rows]),
        positions=_concatenate_ints([row.positions for row in rows]),
        segments=_shift_segments([row.segments for row in rows], offsets),
        written=_concatenate_ints([row.written + offset for row, offset in zip(rows, offsets, strict=True)]),
        predictor=_concatenate_ints(
            [row.predictor + offset for row, offset in zip(rows, offsets, strict=True)]
        ),
        spans=_shift_spans(rows),
        s_plus=_concatenate_floats([row.s_plus for row in rows]),
        s_minus=_concatenate_floats([row.s_minus for row in rows]),
        weight=_concatenate_floats([row.weight for row in rows]),
        num_paths=_concatenate_floats([row.num_paths for row in rows]),
        behavior_logprobs=_concatenate_floats([row.behavior_logprobs for row in rows]),
        old_logprobs=_concatenate_floats([row.old_logprobs for row in rows]),
        ref_logprobs=None
        if rows[0].ref_logprobs is None
        else _concatenate_floats([row.ref_logprobs for row in rows if row.ref_logprobs is not None]),
        num_repeated=sum(row.num_repeated for row in rows),
        token_budget=rows[0].token_budget,
    )


def _shift_spans(rows: Sequence[PackedRow]) -> tuple[WrittenSpan, ...]:
    offsets = np.cumsum([0, *(len(row.written) for row in rows)]).tolist()
    return tuple(
        replace(span, start=span.start + offset, stop=span.stop + offset)
        for row, offset in zip(rows, offsets[:-1], strict=True)
        for span in row.spans
    )


def _shift_segments(groups: Sequence[Sequence[SegmentSpan]], offsets: Ints) -> tuple[SegmentSpan, ...]:
    spans: list[SegmentSpan] = []
    for group, offset in zip(groups, offsets.tolist(), strict=True):
        first = len(spans)
        for span in group:
            parent = span.parent + first if span.parent >= 0 else -1
            spans.append(SegmentSpan(parent, span.start + offset, span.stop + offset))
    return tuple(spans)


def _concatenate_ints(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _concatenate_floats(parts: Sequence[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])
