"""Two attentions over a packed tree that run on a CPU, for a peer whose own attention needs a GPU.

They take the peer's plan: `cu_q` bounds the segments of the row; `cu_k` bounds, for each segment, its stretch of `kv_index`,
which holds the places of all tokens on the way from the root to the segment's end. Imports nothing of ramify.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True, eq=False)
class _Segment:
    """Queries [start, stop) see the gathered keys [first, last), under the mask; no mask: causal. [L, K]"""

    start: int
    stop: int
    first: int
    last: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class SegmentAttention:
    """Each segment against the gathered keys of its path: what a varlen kernel computes, one call a segment."""

    kv_index: torch.Tensor
    segments: Sequence[_Segment]

    @classmethod
    def of(cls, cu_q: Sequence[int], cu_k: Sequence[int], kv_index: torch.Tensor) -> "SegmentAttention":
        """The plan of a row."""
        spans = zip(pairwise(cu_q), pairwise(cu_k), strict=True)
        return cls(kv_index, [_segment(*queries, *keys) for queries, keys in spans])

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: [1, Hq, N, D], twice [1, Hkv, N, D] -> [1, N, Hq, D]."""
        key, value = key.index_select(2, self.kv_index), value.index_select(2, self.kv_index)
        parts = [
            F.scaled_dot_product_attention(
                query[:, :, s.start : s.stop],
                key[:, :, s.first : s.last],
                value[:, :, s.first : s.last],
                attn_mask=s.mask,
                is_causal=s.mask is None,
                scale=scaling,
                enable_gqa=True,
            )
            for s in self.segments
        ]
        return torch.cat(parts, dim=2).transpose(1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class DenseAttention:
    """All queries against all keys under an additive mask. [N, N]"""

    mask: torch.Tensor

    @classmethod
    def of(cls, cu_q: Sequence[int], cu_k: Sequence[int], kv_index: torch.Tensor) -> "DenseAttention":
        """The mask of a row."""
        mask = torch.full((cu_q[-1], cu_q[-1]), float("-inf"))
        for (start, stop), (first, last) in zip(pairwise(cu_q), pairwise(cu_k), strict=True):
            mask[start:stop, kv_index[first:last]] = 0.0
        # A path is in the order of the row, so what is hidden inside a segment stands behind the query.
        return cls(mask + torch.full_like(mask, float("-inf")).triu(1))

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: [1, Hq, N, D], twice [1, Hkv, N, D] -> [1, N, Hq, D]."""
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=self.mask, scale=scaling, enable_gqa=True
        )
        return output.transpose(1, 2)


def _segment(start: int, stop: int, first: int, last: int) -> _Segment:
    own, path = stop - start, last - first
    if own == path:
        return _Segment(start, stop, first, last, None)
    mask = torch.full((own, path), float("-inf")).triu(path - own + 1)
    return _Segment(start, stop, first, last, mask)


ATTENTIONS: Mapping[str, type[SegmentAttention] | type[DenseAttention]] = {
    "segments": SegmentAttention,
    "dense mask": DenseAttention,
}
