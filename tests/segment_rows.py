"""Segments of packed rows, and random queries, keys and values for them."""

import numpy as np
import torch

from ramify.core.records import SegmentSpan

# Depth-first; segment 6 starts a fresh context, segment 8 is another tree.
PARENTS = (-1, 0, 1, 1, 1, 0, -1, 6, -1, 8)


def spans(seed):
    sizes = np.random.default_rng(seed).integers(1, 60, len(PARENTS))
    stops = np.cumsum(sizes).tolist()
    return [
        SegmentSpan(parent, stop - int(size), stop)
        for parent, size, stop in zip(PARENTS, sizes, stops, strict=True)
    ]


def random_spans(size, longest, seed):
    """Depth-first, at most 8 deep, in several trees."""
    rng, segments, above = np.random.default_rng(seed), [], []
    start = 0
    while start < size:
        stop = min(start + int(rng.integers(1, longest)), size)
        above = above[: int(rng.integers(len(above) + 1))]
        parent = above[-1] if above else -1
        segments.append(SegmentSpan(parent, start, stop))
        above = [*above, len(segments) - 1][:8]
        start = stop
    return segments


def random_forest(rng, count, longest):
    """So many segments of fewer than `longest` tokens, each below any one before it, or a root."""
    segments, start = [], 0
    for number in range(count):
        parent = int(rng.integers(-1, number)) if number else -1
        stop = start + int(rng.integers(1, longest))
        segments.append(SegmentSpan(parent, start, stop))
        start = stop
    return segments


def chain(*sizes):
    """Each segment goes on from the one before it."""
    stops = np.cumsum(sizes).tolist()
    return [
        SegmentSpan(n - 1, stop - size, stop) for n, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]


def states(size, kv_heads, heads=4, head_dim=16, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, count, size, head_dim, generator=generator).to(device, dtype)
        for count in (heads, kv_heads, kv_heads)
    ]


def dense_mask(segments, window=None):
    """The keys that each query sees; with a window, the nearest ones of its path. [R, R]"""
    mask = torch.zeros(segments[-1].stop, segments[-1].stop, dtype=torch.bool)
    for number, segment in enumerate(segments):
        above = number
        while above >= 0:
            mask[segment.start : segment.stop, segments[above].start : segments[above].stop] = True
            above = segments[above].parent
    mask = mask.tril()
    if window is None:
        return mask
    # The nearest key of a path has as many keys behind it as there are to the query.
    behind = mask.int().flip(1).cumsum(1).flip(1)
    return mask & (behind <= window)
