"""Lay trees out as rows of unique tokens, depth-first, for one forward pass each.

A run of nodes without a fork is one segment. A node that opens a context starts again at position 0 without
ancestors. The first token of a branch is predicted by the last token before it, wherever in the row that lies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ramify.core.records import Floats, Ints, NodeCredit, PackedRow, SegmentSpan
from ramify.core.tree import Node, Source, Tree


def pack(
    trees: Sequence[Tree], credits: Sequence[Mapping[str, NodeCredit]], token_budget: int
) -> tuple[PackedRow, ...]:
    """Lay out all trees that have credit, as many whole ones to a row as fit into `token_budget` tokens.

    A tree larger than the budget gets a row of its own. Trees without any credit are left out; they count in
    the denominator only.

    Raises:
        ValueError: Credit and tree do not match, or a context starts with a written token.
    """
    flat = [flatten(tree, credit) for tree, credit in zip(trees, credits, strict=True) if not is_dead(credit)]
    return join(flat, token_budget)


def is_dead(credit: Mapping[str, NodeCredit]) -> bool:
    """Whether no token of a tree has credit, so that a loss on it is zero with zero gradient."""
    return not any(node.s_plus.any() or node.s_minus.any() for node in credit.values())


def join(rows: Sequence[PackedRow], token_budget: int) -> tuple[PackedRow, ...]:
    """Join rows, in order, into rows of at most `token_budget` tokens; a larger one stays alone."""
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


def flatten(tree: Tree, credit: Mapping[str, NodeCredit]) -> PackedRow:
    """Lay out one tree.

    Raises:
        ValueError: Credit and tree do not match, or a context starts with a written token.
    """
    layout = _Layout()
    ends: dict[str, _End] = {}
    for node in tree.nodes:
        fresh = node.parent is None or node.opens_context
        before = _START if fresh else ends[node.parent or ""]
        forks = len(tree.children[node.id]) != 1
        ends[node.id] = layout.add(node, before, credit.get(node.id), forks)
    return layout.row()


@dataclass(frozen=True, slots=True)
class _End:
    """Where a context stands after a node: its segment, its last token in the row, its length.

    `forks` says that more than one node goes on from here, so that none may lengthen the segment.
    """

    segment: int
    last: int
    depth: int
    forks: bool


_START = _End(segment=-1, last=-1, depth=0, forks=True)


@dataclass(slots=True)
class _Layout:
    """A row in the making."""

    tokens: list[int] = field(default_factory=list)
    positions: list[Ints] = field(default_factory=list)
    spans: list[SegmentSpan] = field(default_factory=list)
    predictor: list[Ints] = field(default_factory=list)
    written: list[Ints] = field(default_factory=list)
    credits: list[NodeCredit] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, node: Node, before: _End, credit: NodeCredit | None, forks: bool) -> _End:
        """Append a node's tokens behind `before`."""
        size = len(node.token_ids)
        if (credit is not None) != (node.source is Source.POLICY):
            raise ValueError(f"node {node.id!r}: credit belongs on policy nodes and on all of them")
        if not size:
            return replace(before, forks=before.forks or forks)
        start = len(self.tokens)
        self.tokens.extend(node.token_ids)
        self.positions.append(np.arange(before.depth, before.depth + size))
        segment = self._span(before, start, size)
        if credit is not None:
            self._write(node, start, before.last, credit)
        return _End(segment, start + size - 1, before.depth + size, forks)

    def _span(self, before: _End, start: int, size: int) -> int:
        if before.forks:
            self.spans.append(SegmentSpan(before.segment, start, start + size))
            return len(self.spans) - 1
        span = self.spans[before.segment]
        self.spans[before.segment] = SegmentSpan(span.parent, span.start, start + size)
        return before.segment

    def _write(self, node: Node, start: int, before: int, credit: NodeCredit) -> None:
        size = len(node.token_ids)
        if before < 0:
            raise ValueError(
                f"node {node.id!r}: its context starts with a written token, which nothing predicts"
            )
        parts = (credit.s_plus, credit.s_minus, credit.weight, credit.num_paths, node.behavior_logprobs)
        if any(len(part) != size for part in parts):
            raise ValueError(
                f"node {node.id!r}: {size} tokens, credit and logprobs of {[len(p) for p in parts]}"
            )
        index = np.arange(start, start + size)
        previous = index - 1
        previous[0] = before
        self.written.append(index)
        self.predictor.append(previous)
        self.credits.append(credit)
        self.logprobs.extend(node.behavior_logprobs)

    def row(self) -> PackedRow:
        """The finished row."""
        return PackedRow(
            token_ids=np.array(self.tokens, dtype=np.int64),
            positions=_whole(self.positions),
            segments=tuple(self.spans),
            written=_whole(self.written),
            predictor=_whole(self.predictor),
            s_plus=_reals([c.s_plus for c in self.credits]),
            s_minus=_reals([c.s_minus for c in self.credits]),
            weight=_reals([c.weight for c in self.credits]),
            num_paths=_reals([c.num_paths for c in self.credits]),
            behavior_logprobs=np.array(self.logprobs, dtype=np.float64),
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
        s_plus=_reals([row.s_plus for row in rows]),
        s_minus=_reals([row.s_minus for row in rows]),
        weight=_reals([row.weight for row in rows]),
        num_paths=_reals([row.num_paths for row in rows]),
        behavior_logprobs=_reals([row.behavior_logprobs for row in rows]),
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
