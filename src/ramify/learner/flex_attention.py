"""Attention over a packed row on GPUs: torch's FlexAttention, and its flash kernel for rows without a fork. Untested on a GPU.

Tokens are depth-first in the forest of contexts, so everything between a token and the end of its segment's subtree has it
in its context. Key kv is visible to query q iff kv <= q and q lies before the end of the subtree of kv's segment: two
numbers per key. Queries are the last tokens of the row; what stands before them has keys and values only. Which blocks of
keys a block of queries sees in part or in full is counted from the segments, so no mask over pairs of tokens exists.
A layer with a sliding window hides keys by a third number for each token, its depth. Nothing is padded: the kernels check the ends of queries and keys themselves.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ramify.core.records import Ints, SegmentSpan
from ramify.learner.tree_attention import depths_of
from ramify.modeling.attention import grouped_sdpa

_BLOCK = 128
_VARIANTS = 64
"""How many versions of the kernel one process may compile: they differ in layouts, in the dtype, and in whether there is a
gradient. Torch's own limit of 8 is for shapes; beyond it torch would compute all scores at once."""
_FLOAT32_KERNEL = {"fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32, "fwd_num_stages": 2}
"""80 KiB of shared memory at a head size of 128; torch's own choice takes up to 228. Backward it takes its smallest blocks."""


class FlexTreeAttention:
    """The attention plan of one packed row; on a CPU it has no backward pass.

    Args:
        segments: Spans that cover the row in depth-first order, parents before children.
        device: Device of the row.
        compiled: False runs the uncompiled function, which computes all scores at once.
    """

    def __init__(self, segments: Sequence[SegmentSpan], device: torch.device, compiled: bool = True) -> None:
        self._segments, self._device = tuple(segments), device
        self._has_forks = any(segment.parent != number - 1 for number, segment in enumerate(segments))
        self._attend: Callable[..., torch.Tensor] = _compiled() if compiled else flex_attention  # type: ignore[assignment]
        self._longest = int(depths_of(segments).max()) + 1
        self._masks: dict[int | None, BlockMask] = {}

    def __call__(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Shapes: query [1, Hq, Q, D], key and value [1, Hkv, R, D] -> [1, Q, Hq, D]; queries of the last Q <= R tokens."""
        del layer_index
        if window is not None and window >= self._longest:
            window = None
        if not self._has_forks and window is None and _flash_can(query, key, value):
            return causal_attention(query, key, value, scaling).transpose(1, 2)
        if window not in self._masks:
            # All layers have the same queries, and those of a kind the same window.
            context = key.shape[2] - query.shape[2]
            self._masks[window] = _block_mask(self._segments, context, self._device, window)
        output = self._attend(
            query,
            key,
            value,
            block_mask=self._masks[window],
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
            # One kernel for all numbers of queries: that for few would be compiled too, and not for all numbers of heads.
            kernel_options={
                "FORCE_USE_FLEX_ATTENTION": True,
                **(_FLOAT32_KERNEL if query.dtype == torch.float32 else {}),
            },
        )
        return output.transpose(1, 2)


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Compute causal attention of the last Q <= R tokens. [1, Hq, Q, D], [1, Hkv, R, D] -> [1, Hq, Q, D]"""
    mask: torch.Tensor = causal_lower_right(query.shape[2], key.shape[2])
    return grouped_sdpa(query, key, value, scaling, mask)


def _flash_can(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return True if the flash kernel takes these: 16-bit types on a GPU. Any other kernel would compute all scores at once."""
    gqa = query.shape[1] != key.shape[1]
    return can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, gqa))


@cache
def _compiled() -> Callable[..., torch.Tensor]:
    # Rows of any length share one compiled function.
    attend: Callable[..., torch.Tensor] = torch.compile(flex_attention, dynamic=True, fullgraph=True)

    def call(*args: torch.Tensor, **kwargs: object) -> torch.Tensor:
        with torch._dynamo.config.patch(recompile_limit=_VARIANTS):
            return attend(*args, **kwargs)

    return call


def _block_mask(
    segments: Sequence[SegmentSpan], context: int, device: torch.device, window: int | None = None
) -> BlockMask:
    """Return the mask of the queries behind the first `context` tokens."""
    ends, size = _subtree_ends(segments), segments[-1].stop
    partial, full = _visible_blocks(segments, ends, context, window)
    lengths = [segment.stop - segment.start for segment in segments]
    # Counted from the first query. The offset is in these, as a number of its own would be compiled into the kernel.
    first_query = torch.arange(-context, size - context, dtype=torch.int32, device=device)
    end_query = torch.from_numpy((np.repeat(ends, lengths) - context).astype(np.int32)).to(device)

    def visible(_batch: torch.Tensor, _head: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (first_query[kv] <= q) & (q < end_query[kv])

    if window is not None:
        depths = depths_of(segments).astype(np.int32)
        of_query = torch.from_numpy(depths[context:]).to(device)
        last_depth = torch.from_numpy(depths + np.int32(window)).to(device)

    def near(batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return visible(batch, head, q, kv) & (of_query[q] < last_depth[kv])

    return BlockMask.from_kv_blocks(
        *_listed(partial, device),
        *_listed(full, device),
        BLOCK_SIZE=_BLOCK,
        mask_mod=visible if window is None else near,
        seq_lengths=(size - context, size),
    )


def _visible_blocks(
    segments: Sequence[SegmentSpan], ends: Ints, context: int, window: int | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Mark which blocks of queries see a block of keys in part, and which in full. [query blocks, key blocks] each"""
    starts, size = np.array([segment.start for segment in segments]), segments[-1].stop
    # Cut the segments at block edges: a piece of queries sees all of a piece of keys, or none, or is in the same segment.
    key_start, key_stop, key_blocks = _pieces(starts, 0, size)
    key_end = ends[np.searchsorted(starts, key_start, side="right") - 1]
    query_start, query_stop, query_blocks = _pieces(starts, context, size)
    depths = depths_of(segments)
    partial = np.zeros((len(query_blocks), len(key_blocks)), dtype=bool)
    full = np.zeros_like(partial)
    for block, pieces in enumerate(np.split(np.arange(len(query_start)), query_blocks[1:])):
        first, stop = query_start[pieces, None], query_stop[pieces, None]
        inside = first < key_end
        any_visible = (key_start < stop) & inside
        all_visible = (key_stop <= first + 1) & inside
        if window is not None:
            # The nearest pair, and the farthest one.
            any_visible &= depths[first] < depths[key_stop - 1] + window
            all_visible &= depths[stop - 1] < depths[key_start] + window
        partial[block] = np.logical_or.reduceat(any_visible.any(0), key_blocks)
        full[block] = np.logical_and.reduceat(all_visible.all(0), key_blocks)
    # Blocks that the row does not fill need the mask.
    full[-1] &= (size - context) % _BLOCK == 0
    full[:, -1] &= size % _BLOCK == 0
    return partial & ~full, full


def _pieces(starts: Ints, first: int, size: int) -> tuple[Ints, Ints, Ints]:
    """Cut tokens first..size-1 at segments and blocks: starts of the pieces, stops, and each block's first piece."""
    borders = np.arange(first, size, _BLOCK)
    edges = np.unique(np.concatenate([starts[starts > first], borders]))
    return edges, np.append(edges[1:], size), np.searchsorted(edges, borders)


def _listed(blocks: npt.NDArray[np.bool_], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the blocks of keys that each block of queries sees, and list all blocks, those first. [1, 1, B], [1, 1, B, K]"""
    numbers = blocks.sum(1, dtype=np.int32)
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(numbers)[None, None].to(device), torch.from_numpy(order)[None, None].to(device)


def _subtree_ends(segments: Sequence[SegmentSpan]) -> Ints:
    """Return the end of each segment's subtree. [S]"""
    ends = np.array([segment.stop for segment in segments])
    for number in range(len(segments) - 1, -1, -1):
        parent = segments[number].parent
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[number])
    return ends
