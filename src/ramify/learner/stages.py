"""Stages of a row: parts of a tree that are computed one after the other, forward and backward.

A tree that is larger than the token budget is cut at branch points, depth-first. A segment with more tokens below it
than the budget is a stage by itself. The stages below read its keys and values, whose gradients are accumulated until
the last of these stages is done. So no token is computed twice, and only one path and one stage are in memory at a
time: memory grows with the depth of a tree, not with its size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ramify.core.records import SegmentSpan


@dataclass(frozen=True, slots=True)
class Stage:
    """Segments that are computed together.

    Attributes:
        segments: Indices of the segments in the row, ascending.
        above: Indices of the stages above, of one segment each, from the root down.
        release: Index of the last stage that needs this one, directly or through others; its own index if none does.
    """

    segments: tuple[int, ...]
    above: tuple[int, ...]
    release: int


def stages(segments: Sequence[SegmentSpan], token_budget: int) -> tuple[Stage, ...]:
    """Cut a row into stages of at most `token_budget` tokens; a longer segment is a stage of its own.

    Args:
        segments: Segments of the row, parents before children.
        token_budget: Most tokens of a stage.
    """
    below: list[list[int]] = [[] for _ in segments]
    roots: list[int] = []
    sizes = [segment.stop - segment.start for segment in segments]
    for number in range(len(segments) - 1, -1, -1):
        parent = segments[number].parent
        if parent >= 0:
            sizes[parent] += sizes[number]
        (below[parent] if parent >= 0 else roots).insert(0, number)
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    _Cut(below, sizes, token_budget, found).children(roots, ())
    release = list(range(len(found)))
    for number in range(len(found) - 1, -1, -1):
        for above in found[number][1]:
            release[above] = max(release[above], release[number])
    return tuple(Stage(own, above, last) for (own, above), last in zip(found, release, strict=True))


@dataclass(frozen=True, slots=True)
class _Cut:
    """`below`: children of each segment; `sizes`: tokens of each segment's subtree; `found`: stages so far."""

    below: Sequence[Sequence[int]]
    sizes: Sequence[int]
    token_budget: int
    found: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def children(self, numbers: Sequence[int], above: tuple[int, ...]) -> None:
        """Add the stages of siblings, with as many whole subtrees per stage as fit."""
        group: list[int] = []
        room = 0
        for number in numbers:
            if self.sizes[number] > self.token_budget:
                trunk = self._add([number], above)
                self.children(self.below[number], (*above, trunk))
                continue
            if not group or self.sizes[number] > room:
                self._flush(group, above)
                group, room = [], self.token_budget
            group.append(number)
            room -= self.sizes[number]
        self._flush(group, above)

    def _flush(self, group: Sequence[int], above: tuple[int, ...]) -> None:
        if group:
            self._add(chain.from_iterable(self._subtree(number) for number in group), above)

    def _add(self, numbers: "Iterator[int] | list[int]", above: tuple[int, ...]) -> int:
        self.found.append((tuple(sorted(numbers)), above))
        return len(self.found) - 1

    def _subtree(self, number: int) -> Iterator[int]:
        yield number
        for child in self.below[number]:
            yield from self._subtree(child)
