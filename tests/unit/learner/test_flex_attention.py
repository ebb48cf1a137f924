import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from ramify.core.records import SegmentSpan
from ramify.learner.flex_attention import FlexTreeAttention, _block_mask, causal_attention
from ramify.learner.pack import pack
from ramify.learner.tree_attention import TreeAttention
from random_trees import credited, random_tree, supervised_credit, tree_of

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
    rng, spans, above = np.random.default_rng(seed), [], []
    start = 0
    while start < size:
        stop = min(start + int(rng.integers(1, longest)), size)
        above = above[: int(rng.integers(len(above) + 1))]
        parent = above[-1] if above else -1
        spans.append(SegmentSpan(parent, start, stop))
        above = [*above, len(spans) - 1][:8]
        start = stop
    return spans


class Largest(TorchDispatchMode):
    """Sees how many numbers the largest tensor has that an operation makes."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [x for x in (made if isinstance(made, (tuple, list)) else [made]) if torch.is_tensor(x)]
        self.numel = max([self.numel, *(x.numel() for x in tensors)])
        return made


def states(size, kv_heads, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, size, 16, generator=generator).to(device) for heads in (4, kv_heads, kv_heads)
    ]


@pytest.mark.integration
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_forward_equals_that_of_the_runs(seed, kv_heads):
    device = torch.device("cpu")
    for segments in (spans(seed), random_spans(300, 40, seed)):
        query, key, value = states(segments[-1].stop, kv_heads)
        with torch.no_grad():
            ours = FlexTreeAttention(segments, device, compiled=False)(0, query, key, value, 0.3)
            runs = TreeAttention(segments, device, torch.float32)(0, query, key, value, 0.3)
        assert torch.allclose(ours, runs, atol=1e-5)
        behind = FlexTreeAttention(segments, device, compiled=False)(0, query[:, :, 5:], key, value, 0.3)
        assert torch.allclose(behind, runs[:, 5:], atol=1e-5)


BLOCKS = [
    f"{kind}{side}_{what}"
    for kind in ("", "full_")
    for side in ("q", "kv")
    for what in ("num_blocks", "indices")
]


@pytest.mark.parametrize("longest", [4, 50, 500, 2000])
@pytest.mark.parametrize("size", [1, 128, 129, 1000, 1408])
def test_the_blocks_are_those_of_the_dense_mask(size, longest):
    for seed in range(3):
        segments = random_spans(size, longest, seed)
        # Queries are whole segments in the learner, but the mask does not rely on it.
        for context in {0, size // 3, 128 * (size // 300), segments[-1].start}:
            ours = _block_mask(segments, context, torch.device("cpu"))
            shape = size - context, size
            dense = create_block_mask(ours.mask_mod, None, None, *shape, device="cpu", BLOCK_SIZE=128)
            assert (ours.seq_lengths, ours.BLOCK_SIZE) == (dense.seq_lengths, dense.BLOCK_SIZE)
            for name in BLOCKS:
                assert torch.equal(getattr(ours, name), getattr(dense, name)), name


def numbered(tree):
    """The tree with a token id of its own for each token, and what stands before each token in its context."""
    ids = itertools.count()
    tree = tree_of([replace(n, token_ids=tuple(next(ids) for _ in n.token_ids)) for n in tree.nodes])
    before = {}
    for trajectory in tree.trajectories:
        for segment in trajectory.segments:
            tokens = segment.token_ids
            for at, token in enumerate(tokens):
                assert before.setdefault(token, set(tokens[: at + 1])) == set(tokens[: at + 1])
    return tree, before


@pytest.mark.parametrize("seed", range(12))
def test_a_token_sees_its_context_whatever_the_forest(seed):
    rng, device = np.random.default_rng(seed), torch.device("cpu")
    tree, before = numbered(random_tree(rng, depth=4, split_turns=True))
    (row,) = pack(credited([tree], [supervised_credit(tree)]), 10_000)
    size = len(row.token_ids)
    expected = np.array([[int(kv) in before[int(q)] for kv in row.token_ids] for q in row.token_ids])
    mask = _block_mask(row.segments, 0, device).mask_mod
    q, kv = torch.arange(size)[:, None], torch.arange(size)[None]
    assert np.array_equal(mask(0, 0, q, kv).numpy(), expected)
    query, key, value = states(size, 2)
    dense = torch.zeros(size, size).masked_fill_(~torch.from_numpy(expected), float("-inf"))
    plain = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense, scale=0.3, enable_gqa=True
    )
    runs = TreeAttention(row.segments, device, torch.float32)(0, query, key, value, 0.3)
    assert torch.allclose(runs, plain.transpose(1, 2), atol=1e-5)


def test_nothing_over_pairs_of_tokens_is_built():
    size, segments = 1 << 14, random_spans(1 << 14, 500, 0)
    tracemalloc.start()
    with Largest() as largest:
        mask = _block_mask(segments, 0, torch.device("cpu"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    blocks = size // 128
    assert {getattr(mask, name).numel() for name in BLOCKS} == {blocks, blocks**2}
    # torch has room for one block more while it turns the lists round; the token numbers are as long as the row.
    assert largest.numel <= max(size, blocks * (blocks + 1))
    assert peak < size**2 / 64
