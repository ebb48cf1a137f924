"""Attention over a packed row on GPUs, with torch's FlexAttention. Untested on a GPU.

Tokens are depth-first in the forest of contexts, so everything between a token and the end of its segment's subtree has it
in its context. Key kv is visible to query q iff kv <= q and q lies before the end of the subtree of kv's segment. This takes
one number per token. Which blocks of keys a block of queries sees in part or in full is counted from the segments, so no
mask over pairs of tokens exists. Rows are padded to multiples of 128, so that few shapes are compiled. A padding token
sees only itself, and no other token sees it.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ramify.core.records import Ints, SegmentSpan

_BLOCK = 128


class FlexTreeAttention:
    """The attention plan of one packed row; on a CPU it has no backward pass.

    Args:
        segments: Spans that cover the row in depth-first order, parents before children.
        device: Device of the row.
        compiled: False runs the uncompiled function, which computes all scores at once.
    """

    def __init__(self, segments: Sequence[SegmentSpan], device: torch.device, compiled: bool = True) -> None:
        self._size = segments[-1].stop
        self._padding = -self._size % _BLOCK
        self._attend: Callable[..., torch.Tensor] = _compiled() if compiled else flex_attention  # type: ignore[assignment]
        self._mask = _block_mask(segments, self._size + self._padding, device)

    def __call__(
        self, layer_index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [1, Hq, Q, D], key and value [1, Hkv, R, D] -> [1, Q, Hq, D]; queries of the last Q <= R tokens."""
        del layer_index
        context = self._size - query.shape[2]
        query = F.pad(query, (0, 0, context, 0))
        query, key, value = (F.pad(x, (0, 0, 0, self._padding)) for x in (query, key, value))
        output: torch.Tensor = self._attend(
            query,
            key,
            value,
            block_mask=self._mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return output[:, :, context : self._size].transpose(1, 2)


@cache
def _compiled() -> Callable[..., torch.Tensor]:
    # Rows of any length share one compiled function.
    attend: Callable[..., torch.Tensor] = torch.compile(flex_attention, dynamic=True)
    return attend


def _block_mask(segments: Sequence[SegmentSpan], size: int, device: torch.device) -> BlockMask:
    ends = _subtree_ends(segments)
    partial, full = _visible_blocks(segments, ends, size)
    lengths = [segment.stop - segment.start for segment in segments]
    padding = np.arange(segments[-1].stop, size)
    token_ends = torch.from_numpy(np.concatenate([np.repeat(ends, lengths), padding + 1])).to(device)

    def visible(_batch: torch.Tensor, _head: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kv <= q) & (q < token_ends[kv])

    return BlockMask.from_kv_blocks(
        *_listed(partial, device),
        *_listed(full, device),
        BLOCK_SIZE=_BLOCK,
        mask_mod=visible,
        seq_lengths=(size, size),
    )


def _visible_blocks(
    segments: Sequence[SegmentSpan], ends: Ints, size: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which blocks of queries see a block of keys in part, and which in full. [B, B] each"""
    count = size // _BLOCK
    partial, full = np.zeros((count, count), dtype=bool), np.zeros((count, count), dtype=bool)
    # Cut the segments at block edges: then all queries of a piece see the same keys of an earlier block, and all keys
    # of a piece are seen by the same queries of a later block.
    starts = np.array([segment.start for segment in segments])
    borders = np.arange(0, segments[-1].stop, _BLOCK)
    edges = np.unique(np.concatenate([starts, borders]))
    lengths = np.diff(edges, append=segments[-1].stop)
    owner = np.searchsorted(starts, edges, side="right") - 1
    first = np.searchsorted(edges, borders)
    for block, pieces in enumerate(np.split(np.arange(len(edges)), first[1:])):
        keys = slice(0, int(first[block]))
        sees = edges[pieces] < ends[owner[keys], None]
        queries = sees @ lengths[pieces]
        if block:
            full[block, :block] = np.minimum.reduceat(queries, first[:block]) == _BLOCK
            partial[block, :block] = (np.maximum.reduceat(queries, first[:block]) > 0) & ~full[block, :block]
        partial[block, block] = True
    return partial, full


def _listed(blocks: npt.NDArray[np.bool_], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """For each block of queries: how many blocks of keys it sees, and all blocks, those first. [1, 1, B], [1, 1, B, B]"""
    numbers = blocks.sum(1, dtype=np.int32)
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(numbers)[None, None].to(device), torch.from_numpy(order)[None, None].to(device)


def _subtree_ends(segments: Sequence[SegmentSpan]) -> Ints:
    """End of each segment's subtree. [S]"""
    ends = np.array([segment.stop for segment in segments])
    for number in range(len(segments) - 1, -1, -1):
        parent = segments[number].parent
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[number])
    return ends
