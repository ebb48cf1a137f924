"""Attention over a packed row: each segment attends to its ancestors and causally to itself, and to nothing else.

No mask over the row exists. Segments of like size are padded into one call: those without ancestors (prompts,
supervised chains) into a causal one, the others, siblings and cousins alike, into one whose keys are the
segment's own tokens followed by those of its ancestors. A padded key lies behind every real query and a padded
query is dropped, so both are exact. Rows are gathered with `F.embedding`, whose backward pass adds up the
gradients of a key that many segments read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ramify.core.records import Ints, SegmentSpan
from ramify.modeling.attention import grouped_sdpa

_MASK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class _Job:
    """One segment: its own tokens and those of its ancestors, as row indices in the order of the context."""

    own: Ints
    ancestors: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Segments that share a call. `queries` [B, L]; `keys` [B, S], the same when there are no ancestors."""

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None


class TreeAttention:
    """The attention plan of one packed row.

    Args:
        segments: Spans that cover the row, parents before children.
        device: Where the row is.
        dtype: Of the model's activations.
    """

    def __init__(self, segments: Sequence[SegmentSpan], device: torch.device, dtype: torch.dtype) -> None:
        jobs = _jobs(segments)
        self._whole_row = len(jobs) == 1
        self._batches = [_batch(jobs[first:last], device, dtype) for first, last in _groups(jobs)]
        self._back = _positions(jobs, [batch.queries.shape for batch in self._batches], device)

    def __call__(
        self, layer_index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [1, Hq, R, D], key and value [1, Hkv, R, D] -> [1, R, Hq, D]."""
        del layer_index
        if self._whole_row:
            return grouped_sdpa(query, key, value, scaling, causal=True).transpose(1, 2)
        size, width = query.shape[2], query.shape[3]
        rows = [x.transpose(1, 2).reshape(size, -1) for x in (query, key, value)]
        outputs = []
        for batch in self._batches:
            parts = zip((batch.queries, batch.keys, batch.keys), rows, strict=True)
            q, k, v = (
                F.embedding(index, x).view(*index.shape, -1, width).transpose(1, 2) for index, x in parts
            )
            output = grouped_sdpa(q, k, v, scaling, batch.mask, causal=batch.mask is None)
            outputs.append(output.transpose(1, 2).flatten(2).flatten(0, 1))
        flat = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return F.embedding(self._back, flat).view(1, size, -1, width)


def _jobs(segments: Sequence[SegmentSpan]) -> list[_Job]:
    """Segments in the order of their batches: without ancestors first, then by sizes."""
    contexts: list[Ints] = []
    jobs = []
    for segment in segments:
        own = np.arange(segment.start, segment.stop)
        above = contexts[segment.parent] if segment.parent >= 0 else own[:0]
        contexts.append(np.concatenate((above, own)) if len(above) else own)
        jobs.append(_Job(own, above))
    return sorted(jobs, key=_size_class)


def _size_class(job: _Job) -> tuple[int, int]:
    return len(job.ancestors).bit_length(), len(job.own).bit_length()


def _groups(jobs: Sequence[_Job]) -> list[tuple[int, int]]:
    """Ranges of jobs for one call: equal powers of two above both sizes, and a mask of bounded size."""
    starts = [0]
    elements = 0
    for i, job in enumerate(jobs):
        area = len(job.own) * (len(job.own) + len(job.ancestors)) if len(job.ancestors) else 0
        elements += area
        if _size_class(job) != _size_class(jobs[starts[-1]]) or elements > _MASK_ELEMENTS:
            starts.append(i)
            elements = area
    return [
        (first, last) for first, last in zip(starts, [*starts[1:], len(jobs)], strict=True) if last > first
    ]


def _batch(jobs: Sequence[_Job], device: torch.device, dtype: torch.dtype) -> _Batch:
    queries = _padded([job.own for job in jobs])
    index = torch.from_numpy(queries).to(device)
    counts = np.array([len(job.ancestors) for job in jobs])
    if not counts.any():
        return _Batch(index, index, None)
    ancestors = _padded([job.ancestors for job in jobs])
    if (counts == counts[0]).all():
        counts = counts[:1]
    size = queries.shape[1]
    hidden = np.zeros((len(counts), 1, size, size + ancestors.shape[1]), dtype=bool)
    hidden[..., :size] = np.triu(np.ones((size, size), dtype=bool), 1)
    hidden[..., size:] = (np.arange(ancestors.shape[1]) >= counts[:, None])[:, None, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))
    keys = torch.from_numpy(np.concatenate((queries, ancestors), axis=1)).to(device)
    return _Batch(index, keys, mask.to(device))


def _padded(rows: Sequence[Ints]) -> Ints:
    """Rows of unequal length as one array, filled up with index 0 (any token will do)."""
    lengths = np.array([len(row) for row in rows])
    block = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    block[np.arange(block.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return block


def _positions(jobs: Sequence[_Job], shapes: Sequence[tuple[int, ...]], device: torch.device) -> torch.Tensor:
    """Where each token of the row lies among the padded queries of all batches. [R]"""
    position = np.empty(sum(len(job.own) for job in jobs), dtype=np.int64)
    remaining = iter(jobs)
    offset = 0
    for count, length in shapes:
        for _ in range(count):
            own = next(remaining).own
            position[own] = np.arange(offset, offset + len(own))
            offset += length
    return torch.from_numpy(position).to(device)
