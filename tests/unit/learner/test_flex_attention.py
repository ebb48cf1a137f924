import itertools
import shutil
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from ramify.learner import flex_attention
from ramify.learner.flex_attention import FlexTreeAttention, _block_mask, causal_attention
from ramify.learner.pack import pack
from ramify.learner.tree_attention import TreeAttention
from random_trees import credited, random_tree, supervised_credit, tree_of
from segment_rows import chain, dense_mask, random_spans, spans, states


class Largest(TorchDispatchMode):
    """Sees how many numbers the largest tensor has that an operation makes."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [
            x for x in (result if isinstance(result, (tuple, list)) else [result]) if torch.is_tensor(x)
        ]
        self.numel = max([self.numel, *(x.numel() for x in tensors)])
        return result


@pytest.mark.integration
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_forward_equals_that_of_the_runs(seed, kv_heads, window):
    device = torch.device("cpu")
    for segments in (spans(seed), random_spans(300, 40, seed)):
        query, key, value = states(segments[-1].stop, kv_heads)
        with torch.no_grad():
            whole = FlexTreeAttention(segments, device, compiled=False)
            ours = whole(0, query, key, value, 0.3, window)
            runs = TreeAttention(segments, device, torch.float32)(0, query, key, value, 0.3, window)
        assert torch.allclose(ours, runs, atol=1e-5)
        plan = FlexTreeAttention(segments, device, compiled=False)
        behind = plan(0, query[:, :, 5:], key, value, 0.3, window)
        assert torch.allclose(behind, runs[:, 5:], atol=1e-5)


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs g++ for a CPU")
def test_compiled_rows_of_all_lengths_share_few_kernels():
    device, cases = torch.device("cpu"), [(300, 0), (999, 300), (50, 0), (128, 60), (2000, 1000), (700, 0)]
    torch._dynamo.reset()
    counters.clear()
    for size, context in cases:
        segments = random_spans(size, 60, size)
        query, key, value = states(size, 2)
        with torch.no_grad():
            ours = FlexTreeAttention(segments, device)(0, query[:, :, context:], key, value, 0.3)
            runs = TreeAttention(segments, device, torch.float32)(0, query, key, value, 0.3)
        assert torch.allclose(ours, runs[:, context:], atol=1e-5)
    # Fewer queries than keys, one block of queries or keys, or both: torch compiles these apart.
    assert counters["stats"]["unique_graphs"] <= 4


def plain(query, key, value, mask):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True
    )


@pytest.mark.parametrize("sizes", [(70,), (128, 1, 60), (1, 200)])
def test_a_row_without_forks_is_causal_from_its_end(sizes):
    segments = chain(*sizes)
    mask = dense_mask(segments)
    assert torch.equal(mask, torch.ones_like(mask).tril())
    query, key, value = states(len(mask), 2)
    wanted = plain(query, key, value, mask)
    for context in {0, segments[-1].start}:
        ours = causal_attention(query[:, :, context:], key, value, 0.3)
        assert torch.allclose(ours, wanted[:, :, context:], atol=1e-5)


def test_only_a_row_without_forks_is_taken_by_the_flash_kernel(monkeypatch):
    monkeypatch.setattr(flex_attention, "_flash_can", lambda *_: True)
    taken = []
    monkeypatch.setattr(flex_attention, "causal_attention", lambda query, *_: taken.append(1) or query)
    for segments in (chain(50), chain(40, 9, 30), spans(0), random_spans(90, 20, 3)):
        plan = FlexTreeAttention(segments, torch.device("cpu"), compiled=False)
        with torch.no_grad():
            plan(0, *states(segments[-1].stop, 2), 0.3)
    assert len(taken) == 2


BLOCKS = [
    f"{kind}{side}_{what}"
    for kind in ("", "full_")
    for side in ("q", "kv")
    for what in ("num_blocks", "indices")
]


@pytest.mark.parametrize("window", [None, 1, 130])
@pytest.mark.parametrize("longest", [4, 50, 500, 2000])
@pytest.mark.parametrize("size", [1, 128, 129, 1000, 1408])
def test_the_blocks_are_those_of_the_dense_mask(size, longest, window):
    for seed in range(3 if size < 1000 else 1):
        segments = random_spans(size, longest, seed)
        # Queries are whole segments in the learner, but the mask does not rely on it.
        for context in {0, size // 3, 128 * (size // 300), segments[-1].start}:
            ours = _block_mask(segments, context, torch.device("cpu"), window)
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
    wanted = plain(query, key, value, torch.from_numpy(expected))
    runs = TreeAttention(row.segments, device, torch.float32)(0, query, key, value, 0.3)
    assert torch.allclose(runs, wanted.transpose(1, 2), atol=1e-5)


def test_nothing_over_pairs_of_tokens_is_built():
    size, segments = 1 << 14, random_spans(1 << 14, 500, 0)
    _block_mask(
        random_spans(1 << 8, 5, 0), 0, torch.device("cpu")
    )  # what torch imports at its first call is not counted
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
