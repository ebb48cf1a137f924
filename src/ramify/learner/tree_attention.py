"""Attention over a packed row: each segment attends to its ancestors and causally to itself, and to nothing else.

In a layer with a sliding window it attends to the nearest of these tokens only, counted along its path.

There is no mask over the whole row. The row is cut into runs of at most `_RUN` queries, and each run is multiplied only
with the keys that it can see, so that a block of scores stays in the processor's cache. Small neighbouring segments share
a run, with a mask over the few keys that not all of them see. The backward pass recomputes the scores; only queries, keys
and values are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ramify.core.records import Ints, SegmentSpan
from ramify.modeling.attention import grouped_sdpa

_RUN = 128
_WASTE = 8192
"""How many hidden (query, key) pairs to compute rather than start another run: about the fixed cost of a run."""

_Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Queries [start, stop), and the ranges of keys that at least one of them sees, ascending.

    `mask` is added to the scores of the last M keys; all queries see all keys before those. [L, M]
    """

    start: int
    stop: int
    context: tuple[_Range, ...]
    mask: torch.Tensor


class TreeAttention:
    """The attention plan of one packed row.

    Args:
        segments: Spans that cover the row, parents before children.
        device: Device of the row.
        dtype: Type of the model's activations.
        context: Number of tokens at the start of the row, in segments of their own, that have keys but no queries.
    """

    def __init__(
        self, segments: Sequence[SegmentSpan], device: torch.device, dtype: torch.dtype, context: int = 0
    ) -> None:
        self._segments, self._device, self._dtype, self._context = tuple(segments), device, dtype, context
        self._longest = int(depths_of(segments).max()) + 1
        self._runs: dict[int | None, tuple[_Run, ...]] = {}

    def __call__(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Shapes: query [1, Hq, R - context, D], key and value [1, Hkv, R, D] -> [1, R - context, Hq, D]."""
        del layer_index
        if window is not None and window >= self._longest:
            window = None
        if len(self._segments) == 1 and window is None:
            return grouped_sdpa(query, key, value, scaling, causal=True).transpose(1, 2)
        if window not in self._runs:
            # Layers of a kind share them.
            self._runs[window] = _runs(self._segments, self._device, self._dtype, self._context, window)
        output: torch.Tensor = _RunAttention.apply(query[0], key[0], value[0], scaling, self._runs[window])  # type: ignore[no-untyped-call]
        return output[None]


def depths_of(segments: Sequence[SegmentSpan]) -> Ints:
    """Return the number of tokens before each token of a row on its path. [R]"""
    depths = np.empty(segments[-1].stop, dtype=np.int64)
    for segment in segments:
        first = depths[segments[segment.parent].stop - 1] + 1 if segment.parent >= 0 else 0
        depths[segment.start : segment.stop] = np.arange(first, first + segment.stop - segment.start)
    return depths


class _RunAttention(torch.autograd.Function):
    """Shapes: query [Hq, Q, D], key and value [Hkv, R, D] -> [Q, Hq, D]; Hq = Hkv x G."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        runs: Sequence[_Run],
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scaling, ctx.runs = scaling, runs
        output = query.new_empty(query.shape[1], query.shape[0], query.shape[2])
        for run in runs:
            q, k, v = _queries(query, run, len(key)) * scaling, _gather(key, run), _gather(value, run)
            _put(output.transpose(0, 1), run, torch.bmm(_probabilities(q, k, run), v))
        return output

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grads: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        grad_output = grads[0].transpose(0, 1)
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        for run in ctx.runs:
            q, k, v = _queries(query, run, len(key)) * ctx.scaling, _gather(key, run), _gather(value, run)
            grad = _queries(grad_output, run, len(key))
            probabilities = _probabilities(q, k, run)
            _scatter_add(grad_value, run, torch.bmm(probabilities.transpose(1, 2), grad))
            grad_scores = torch._softmax_backward_data(
                torch.bmm(grad, v.transpose(1, 2)), probabilities, -1, probabilities.dtype
            )
            _put(grad_query, run, torch.bmm(grad_scores, k).mul_(ctx.scaling))
            _scatter_add(grad_key, run, torch.bmm(grad_scores.transpose(1, 2), q))
        return grad_query, grad_key, grad_value, None, None


def _queries(states: torch.Tensor, run: _Run, num_kv_heads: int) -> torch.Tensor:
    """Return the run's rows, with the heads that share a key head stacked. [Hq, Q, D] -> [Hkv, G L, D]"""
    return states[:, run.start : run.stop].reshape(num_kv_heads, -1, states.shape[2])


def _put(states: torch.Tensor, run: _Run, rows: torch.Tensor) -> None:
    """Invert `_queries`, into `states`."""
    states[:, run.start : run.stop] = rows.view(len(states), -1, states.shape[2])


def _gather(states: torch.Tensor, run: _Run) -> torch.Tensor:
    """Return the keys or values of the run's context. [Hkv, R, D] -> [Hkv, S, D]"""
    return torch.cat([states[:, first:last] for first, last in run.context], 1)


def _scatter_add(states: torch.Tensor, run: _Run, rows: torch.Tensor) -> None:
    """Add the transpose of `_gather` to `states`."""
    offset = 0
    for first, last in run.context:
        states[:, first:last] += rows[:, offset : offset + last - first]
        offset += last - first


def _probabilities(q: torch.Tensor, k: torch.Tensor, run: _Run) -> torch.Tensor:
    """[Hkv, G L, D], [Hkv, S, D] -> [Hkv, G L, S]"""
    scores = torch.bmm(q, k.transpose(1, 2))
    size, masked = run.mask.shape
    scores.view(len(q), -1, size, k.shape[1])[..., k.shape[1] - masked :] += run.mask
    return torch.softmax(scores, -1)


def _runs(
    segments: Sequence[SegmentSpan],
    device: torch.device,
    dtype: torch.dtype,
    context: int,
    window: int | None = None,
) -> tuple[_Run, ...]:
    depths = depths_of(segments)
    pieces = [piece for piece in _pieces(segments) if piece.start >= context]
    if window is not None:
        pieces = [_nearest(piece, int(depths[piece.start]) - window + 1, depths) for piece in pieces]
    return tuple(_run(group, device, dtype, context, depths, window) for group in _groups(pieces))


@dataclass(frozen=True, slots=True)
class _Piece:
    """At most `_RUN` tokens of one segment, and the key ranges that the last one sees, itself included, ascending."""

    start: int
    stop: int
    context: tuple[_Range, ...]


def _pieces(segments: Sequence[SegmentSpan]) -> list[_Piece]:
    """Return the pieces of all segments, in row order."""
    above: list[tuple[_Range, ...]] = []
    pieces: list[_Piece] = []
    for segment in segments:
        before = above[segment.parent] if segment.parent >= 0 else ()
        above.append((*before, (segment.start, segment.stop)))
        count = -((segment.start - segment.stop) // _RUN)
        edges = np.linspace(segment.start, segment.stop, count + 1).astype(int).tolist()
        pieces.extend(
            _Piece(start, stop, _merged((*before, (segment.start, stop)))) for start, stop in pairwise(edges)
        )
    return sorted(pieces, key=lambda piece: piece.start)


def _nearest(piece: _Piece, least: int, depths: Ints) -> _Piece:
    """Return the piece without the keys at depths below `least`, which stand first in each range of its path."""
    nearest = []
    for first, last in piece.context:
        # Segments of one path that lie behind each other are one range; depths ascend within it.
        start = first + int(np.searchsorted(depths[first:last], least))
        if start < last:
            nearest.append((start, last))
    return _Piece(piece.start, piece.stop, tuple(nearest))


def _groups(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Group neighbouring pieces into runs, as long as a run stays short and computes few hidden pairs."""
    groups: list[list[_Piece]] = []
    context: tuple[_Range, ...] = ()
    for piece in pieces:
        if groups:
            length = piece.stop - groups[-1][0].start
            union = _merged((*context, *piece.context))
            before = (groups[-1][-1].stop - groups[-1][0].start) * _size(context)
            waste = length * _size(union) - before - (piece.stop - piece.start) * _size(piece.context)
            if length <= _RUN and waste <= _WASTE:
                groups[-1].append(piece)
                context = union
                continue
        groups.append([piece])
        context = piece.context
    return groups


def _run(
    pieces: Sequence[_Piece],
    device: torch.device,
    dtype: torch.dtype,
    before_queries: int,
    depths: Ints,
    window: int | None,
) -> _Run:
    context = _merged([r for piece in pieces for r in piece.context])
    keys = np.concatenate([np.arange(first, last) for first, last in context])
    start, stop = pieces[0].start, pieces[-1].stop
    hidden = np.ones((stop - start, len(keys)), dtype=bool)
    for piece in pieces:
        rows = np.arange(piece.start, piece.stop)
        hidden[rows - start] = ~_inside(keys, piece.context) | (keys > rows[:, None])
        if window is not None:
            hidden[rows - start] |= depths[keys] <= depths[rows, None] - window
    seen_by_all = int(np.argmax(hidden.any(0))) if hidden.any() else len(keys)
    part = torch.from_numpy(hidden[:, seen_by_all:])
    mask = torch.zeros(part.shape, dtype=dtype).masked_fill_(part, float("-inf"))
    return _Run(start - before_queries, stop - before_queries, context, mask.to(device))


def _inside(keys: Ints, ranges: Sequence[_Range]) -> npt.NDArray[np.bool_]:
    inside = np.zeros(len(keys), dtype=bool)
    for first, last in ranges:
        inside |= (keys >= first) & (keys < last)
    return inside


def _merged(ranges: Sequence[_Range]) -> tuple[_Range, ...]:
    """Return the union of the ranges, ascending, with adjacent ranges joined."""
    merged: list[_Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _size(ranges: Sequence[_Range]) -> int:
    return sum(last - first for first, last in ranges)
