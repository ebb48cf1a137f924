"""Attention over a packed row on GPUs, with torch's FlexAttention. Untested on a GPU.

Tokens lie in depth-first order, so everything between a token and the end of its segment's subtree descends from it.
Key kv is visible to query q iff kv <= q, q lies before the end of the subtree of kv's segment, and both have the same
context root: a segment without a parent starts a new context, also where it lies inside another's subtree. The block
mask needs two numbers a token. Rows are padded to multiples of 128, so that few shapes are compiled; padding sees
itself alone and is seen by nothing else.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ramify.core.records import Ints, SegmentSpan

_BLOCK = 128


class FlexTreeAttention:
    """The attention plan of one packed row; on a CPU it has no backward pass.

    Args:
        segments: Spans that cover the row in depth-first order, parents before children.
        device: Where the row is.
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
        """Shapes: query [1, Hq, R, D], key and value [1, Hkv, R, D] -> [1, R, Hq, D]."""
        del layer_index
        query, key, value = (F.pad(x, (0, 0, 0, self._padding)) for x in (query, key, value))
        output: torch.Tensor = self._attend(
            query,
            key,
            value,
            block_mask=self._mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return output[:, :, : self._size].transpose(1, 2)


@cache
def _compiled() -> Callable[..., torch.Tensor]:
    # Rows of any length share one compiled function.
    attend: Callable[..., torch.Tensor] = torch.compile(flex_attention, dynamic=True)
    return attend


def _block_mask(segments: Sequence[SegmentSpan], size: int, device: torch.device) -> BlockMask:
    ends, roots = (torch.from_numpy(numbers).to(device) for numbers in _token_numbers(segments, size))

    def visible(_batch: torch.Tensor, _head: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kv <= q) & (q < ends[kv]) & (roots[q] == roots[kv])

    return create_block_mask(visible, None, None, size, size, device=device.type, BLOCK_SIZE=_BLOCK)


def _token_numbers(segments: Sequence[SegmentSpan], size: int) -> tuple[Ints, Ints]:
    """End of the subtree of each token's segment, and the segment at its context's root. [size] each

    Padding ends behind itself and has no root that another token has.
    """
    root: list[int] = []
    stop = [segment.stop for segment in segments]
    for number, segment in enumerate(segments):
        root.append(root[segment.parent] if segment.parent >= 0 else number)
    for number in range(len(segments) - 1, -1, -1):
        if segments[number].parent >= 0:
            stop[segments[number].parent] = max(stop[segments[number].parent], stop[number])
    ends, roots = np.arange(1, size + 1), -np.arange(1, size + 1)
    for number, segment in enumerate(segments):
        ends[segment.start : segment.stop] = stop[number]
        roots[segment.start : segment.stop] = root[number]
    return ends, roots
