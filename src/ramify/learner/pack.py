"""Packs trees into rows of unique tokens, for one forward pass each.

A row holds a whole tree, or one context of one path if a model cannot share prefixes. Its tokens are depth-first in the
forest of contexts: what goes on from a node's end comes behind it, then what goes on from inside it, the latest place first.
So everything between a token and the end of its segment's subtree has that segment in its context, and a node's own tokens
lie together. A run of tokens without a fork is one segment. A fresh context starts at position 0 without ancestors. The
first token of a branch is predicted by the last token before it in its context, wherever that is in the row.
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
    """Some of a tree's contexts, each from its first token on.

    Attributes:
        sizes: How many of its first tokens each node has in the piece, by node id; with a node there is all that stands
            before it in its context.
        trained: Ids of the nodes that are trained in this piece; the others are context that an earlier piece trains.
        paths: Indices, in the whole tree, of the trajectories through each node, by node id. [d] each
    """

    sizes: Mapping[str, int]
    trained: frozenset[str]
    paths: Mapping[str, Ints]


def whole(tree: Tree) -> Piece:
    """Return the piece that is the whole tree."""
    return next(_pieces(tree, [{node.id: len(node.token_ids) for node in tree.nodes}]))


def one_context_each(tree: Tree) -> Iterator[Piece]:
    """Return a piece for each context of each trajectory; a context that several trajectories share comes once for each."""
    segments = [segment for trajectory in tree.trajectories for segment in trajectory.segments]
    return _pieces(tree, [{node.id: size for node, size in segment.parts} for segment in segments])


def _pieces(tree: Tree, runs: Sequence[Mapping[str, int]]) -> Iterator[Piece]:
    paths = leaves_below(tree)
    owned: set[str] = set()
    for sizes in runs:
        yield Piece(sizes, frozenset(sizes) - owned, paths)
        owned |= sizes.keys()


def cut_at_branches(tree: Tree, most_tokens: int) -> Iterator[Piece]:
    """Return pieces of consecutive contexts, as many as have `most_tokens` unique tokens together; a longer context comes alone.

    What two pieces share is computed in both and trained in the first (`PackedRow.num_repeated`).
    """
    runs: list[dict[str, int]] = []
    for trajectory in tree.trajectories:
        for segment in trajectory.segments:
            own = {node.id: size for node, size in segment.parts}
            before = runs[-1] if runs else {}
            union = {name: max(own.get(name, 0), before.get(name, 0)) for name in {**before, **own}}
            if runs and sum(union.values()) <= most_tokens:
                runs[-1] = union
            else:
                runs.append(own)
    return _pieces(tree, runs)


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
    """Return one row for each tree that has credit; trees without any count in the denominator only.

    Args:
        trees: Trees of one optimizer step.
        token_budget: Number of tokens computed at a time.
        keep_dead: Keep nodes with weight but without advantage, because a KL term or an entropy bonus acts on them too.
        share_prefixes: False gives each context of each trajectory a row of its own, for models with layers that fold
            the context into a state (linear attention).
        most_tokens: Cut trees with more unique tokens at branch points, into rows of at most as many.

    Raises:
        ValueError: Credit and tree do not match, or a context starts with a written token.
        DataError: An advantage or a logprob is not a finite number; or a tree's tokens need not be the sampled ones.
    """
    rows: list[PackedRow] = []
    first_path = 0
    for number, credited in enumerate(trees):
        tree, credit = credited.tree, credited.credit
        if credit.keys() != {node.id for node in tree.nodes if node.source is Source.POLICY}:
            raise ValueError(f"tree {number}: credit belongs on policy nodes and on all of them")
        if not all(node.exact_ids for node in tree.nodes):
            raise DataError(
                f"problem {tree.problem.id!r}: its tokens were made from an engine's text and need not be those that were "
                "sampled. Train on trees of an engine that returns token ids"
            )
        if not is_dead(credit.values(), keep_dead):
            pieces = _cut(tree, share_prefixes, most_tokens)
            live = (
                p for p in pieces if not is_dead((credit[n] for n in p.trained if n in credit), keep_dead)
            )
            rows.extend(
                _flatten(credited, piece, _Layout(number, first_path, piece.trained, token_budget))
                for piece in live
            )
        first_path += len(tree.trajectories)
    return tuple(rows)


def _cut(tree: Tree, share_prefixes: bool, most_tokens: int | None) -> Iterable[Piece]:
    if not share_prefixes:
        return one_context_each(tree)
    if most_tokens is None or sum(len(node.token_ids) for node in tree.nodes) <= most_tokens:
        return (whole(tree),)
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
    return tuple(_joined(group) for group in groups)


def _flatten(credited: CreditedTree, piece: Piece, layout: "_Layout") -> PackedRow:
    tree, credit = credited.tree, credited.credit
    forest = _Forest.of(tree, piece)
    ends: dict[tuple[str, int], _End] = {}
    waiting = list(reversed(forest.roots))
    while waiting:
        node = waiting.pop()
        origin = forest.places.get(node.id)
        before = _START if origin is None else ends[origin]
        ends.update(layout.add(node, before, forest.behind[node.id]))
        if node.id in credit and node.id in piece.trained and node.token_ids:
            layout.write(
                node, before.last, credit[node.id], credited.annotations[node.id], piece.paths[node.id]
            )
        for _, behind in sorted(forest.behind[node.id].items()):
            waiting.extend(reversed(behind))
    return layout.row()


@dataclass(frozen=True, slots=True)
class _Forest:
    """The contexts of a piece: where each node goes on from.

    Attributes:
        roots: The nodes before which nothing stands.
        places: For each other node the id of the node that it goes on from, and after how many of its tokens.
        behind: For each node those that go on from it, by the number of its tokens before them; the whole node is there
            always.
    """

    roots: tuple[Node, ...]
    places: Mapping[str, tuple[str, int]]
    behind: Mapping[str, Mapping[int, Sequence[Node]]]

    @classmethod
    def of(cls, tree: Tree, piece: Piece) -> "_Forest":
        """Read the contexts of the piece's nodes; those of one place are in the order of their paths."""
        inside = [node for node in tree.nodes if node.id in piece.sizes]
        behind: dict[str, dict[int, list[Node]]] = {node.id: {piece.sizes[node.id]: []} for node in inside}
        places: dict[str, tuple[str, int]] = {}
        roots = []
        for node in inside:
            if node.parent is None or node.context == "fresh":
                roots.append(node)
                continue
            above, size = node.parent, piece.sizes.get(node.parent, 0)
            if isinstance(node.context, Cut):
                above, size = node.context.node, node.context.tokens
            places[node.id] = above, size
            behind[above].setdefault(size, []).append(node)
        return cls(tuple(roots), places, behind)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a context after a node: its segment, its last token in the row, its length.

    `forks` says that more than one node continues from here, so none of them may extend the segment.
    """

    segment: int
    last: int
    depth: int
    forks: bool


_START = _End(segment=-1, last=-1, depth=0, forks=True)


@dataclass(slots=True)
class _Layout:
    """A row under construction."""

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
        self, node: Node, before: _End, behind: Mapping[int, Sequence[Node]]
    ) -> dict[tuple[str, int], _End]:
        """Append a node's tokens, which continue from `before`, up to the last place that others go on from.

        Returns the ends at all these places (`_Forest.behind`).
        """
        size = max(behind)
        ends: dict[tuple[str, int], _End] = {}
        start, done = len(self.tokens), 0
        self.tokens.extend(node.token_ids[:size])
        self.positions.append(np.arange(before.depth, before.depth + size))
        if node.id not in self.trained:
            self.num_repeated += size
        for offset, others in sorted(behind.items()):
            forks = len(others) + (offset < size) != 1
            if offset == done:
                before = replace(before, forks=before.forks or forks)
            else:
                segment = self._segment(before, start + done, offset - done)
                before = _End(segment, start + offset - 1, before.depth + offset - done, forks)
            ends[node.id, offset] = before
            done = offset
        return ends

    def _segment(self, before: _End, start: int, size: int) -> int:
        if before.forks:
            self.segments.append(SegmentSpan(before.segment, start, start + size))
            return len(self.segments) - 1
        span = self.segments[before.segment]
        self.segments[before.segment] = SegmentSpan(span.parent, span.start, start + size)
        return before.segment

    def write(self, node: Node, before: int, credit: NodeCredit, notes: NodeAnnotations, paths: Ints) -> None:
        """Mark the last added node as written by the policy; the token at row index `before` predicts its first token."""
        size = len(node.token_ids)
        if before < 0:
            raise ValueError(
                f"node {node.id!r}: its context starts with a written token, which nothing predicts"
            )
        behavior, old = np.array(node.behavior_logprobs), notes.old_logprobs
        parts = (credit.s_plus, credit.s_minus, credit.weight, credit.num_paths, behavior, old)
        if any(len(part) != size for part in parts):
            raise ValueError(
                f"node {node.id!r}: {size} tokens, credit and logprobs of {[len(p) for p in parts]}"
            )
        names = ("an advantage", "an advantage", "a weight", "a path", "a sampled logprob", "a logprob")
        for name, part in zip(names, parts, strict=True):
            if not np.isfinite(part).all():
                raise DataError(
                    f"node {node.id!r} of tree {self.tree}: {name} is not a finite number; nothing was trained on it"
                )
        index = np.arange(len(self.tokens) - size, len(self.tokens))
        previous = index - 1
        previous[0] = before
        self.written.append(index)
        self.predictor.append(previous)
        span = WrittenSpan(
            self.tree, node.id, self.num_written, self.num_written + size, paths + self.first_path
        )
        self.spans.append(span)
        self.num_written += size
        self.credits.append(credit)
        self.behavior.append(behavior)
        self.old.append(old)
        if notes.ref_logprobs is not None:
            self.ref.append(notes.ref_logprobs)

    def row(self) -> PackedRow:
        """Return the finished row."""
        return PackedRow(
            token_ids=np.array(self.tokens, dtype=np.int64),
            positions=_whole(self.positions),
            segments=tuple(self.segments),
            written=_whole(self.written),
            predictor=_whole(self.predictor),
            spans=tuple(self.spans),
            s_plus=_reals([c.s_plus for c in self.credits]),
            s_minus=_reals([c.s_minus for c in self.credits]),
            weight=_reals([c.weight for c in self.credits]),
            num_paths=_reals([c.num_paths for c in self.credits]),
            behavior_logprobs=_reals(self.behavior),
            old_logprobs=_reals(self.old),
            ref_logprobs=_reals(self.ref) if self.ref else None,
            num_repeated=self.num_repeated,
            token_budget=self.token_budget,
        )


def _joined(rows: Sequence[PackedRow]) -> PackedRow:
    if len(rows) == 1:
        return rows[0]
    offsets = np.cumsum([0, *(len(row.token_ids) for row in rows)])[:-1]
    return PackedRow(
        token_ids=_whole([row.token_ids for row in rows]),
        positions=_whole([row.positions for row in rows]),
        segments=_shifted([row.segments for row in rows], offsets),
        written=_whole([row.written + offset for row, offset in zip(rows, offsets, strict=True)]),
        predictor=_whole([row.predictor + offset for row, offset in zip(rows, offsets, strict=True)]),
        spans=_spans_shifted(rows),
        s_plus=_reals([row.s_plus for row in rows]),
        s_minus=_reals([row.s_minus for row in rows]),
        weight=_reals([row.weight for row in rows]),
        num_paths=_reals([row.num_paths for row in rows]),
        behavior_logprobs=_reals([row.behavior_logprobs for row in rows]),
        old_logprobs=_reals([row.old_logprobs for row in rows]),
        ref_logprobs=None
        if rows[0].ref_logprobs is None
        else _reals([row.ref_logprobs for row in rows if row.ref_logprobs is not None]),
        num_repeated=sum(row.num_repeated for row in rows),
        token_budget=rows[0].token_budget,
    )


def _spans_shifted(rows: Sequence[PackedRow]) -> tuple[WrittenSpan, ...]:
    offsets = np.cumsum([0, *(len(row.written) for row in rows)]).tolist()
    return tuple(
        replace(span, start=span.start + offset, stop=span.stop + offset)
        for row, offset in zip(rows, offsets[:-1], strict=True)
        for span in row.spans
    )


def _shifted(groups: Sequence[Sequence[SegmentSpan]], offsets: Ints) -> tuple[SegmentSpan, ...]:
    spans: list[SegmentSpan] = []
    for group, offset in zip(groups, offsets.tolist(), strict=True):
        first = len(spans)
        for span in group:
            parent = span.parent + first if span.parent >= 0 else -1
            spans.append(SegmentSpan(parent, span.start + offset, span.stop + offset))
    return tuple(spans)


def _whole(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _reals(parts: Sequence[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])
