import numpy as np
import pytest
import torch

from ramify.core.records import SegmentSpan
from ramify.learner import tree_attention
from ramify.learner.tree_attention import TreeAttention
from segment_rows import dense_mask, random_forest

CPU = torch.device("cpu")


def dense(segments, query, key, value, scaling, window=None):
    """The same attention with a mask over the row."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~dense_mask(segments, window), float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 7, 150])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(("count", "longest"), [(1, 40), (2, 40), (9, 40), (30, 40), (30, 4), (4, 400)])
def test_equals_a_dense_mask_with_every_gradient(count, longest, kv_heads, window):
    rng = np.random.default_rng(count)
    segments = random_forest(rng, count, longest)
    size = segments[-1].stop
    generator = torch.Generator().manual_seed(count)
    query, key, value = (
        torch.randn(1, size, heads, 8, generator=generator, dtype=torch.float64)
        .transpose(1, 2)
        .requires_grad_()
        for heads in (4, kv_heads, kv_heads)
    )
    probe = torch.randn(1, size, 4, 8, generator=generator, dtype=torch.float64)
    plan = TreeAttention(segments, CPU, torch.float64)
    ours = plan(0, query, key, value, 0.3, window)
    plain = dense(segments, query, key, value, 0.3, window)
    assert torch.allclose(ours, plain, atol=1e-12)
    actual = torch.autograd.grad((ours * probe).sum(), (query, key, value))
    expected = torch.autograd.grad((plain * probe).sum(), (query, key, value))
    for a, b in zip(actual, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-11)


def test_many_small_segments_share_few_runs():
    spans = [SegmentSpan(-1, 0, 12)] + [SegmentSpan(0, 12 + 9 * i, 21 + 9 * i) for i in range(16)]
    assert len(tree_attention._runs(spans, CPU, torch.float32, 0)) == 2


def test_a_run_is_never_longer_than_its_limit():
    spans = [SegmentSpan(-1, 0, 700), SegmentSpan(0, 700, 830), SegmentSpan(0, 830, 833)]
    runs = tree_attention._runs(spans, CPU, torch.float32, 0)
    assert max(run.stop - run.start for run in runs) <= 128
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]


@pytest.mark.parametrize("window", [None, 9])
def test_a_context_has_keys_and_no_queries(window):
    segments = random_forest(np.random.default_rng(3), 6, 40)
    context, size = segments[0].stop, segments[-1].stop
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(1, 2, size, 8, generator=generator) for _ in range(3))
    whole = TreeAttention(segments, CPU, torch.float32)(0, query, key, value, 0.3, window)
    behind = TreeAttention(segments, CPU, torch.float32, context)
    part = behind(0, query[:, :, context:], key, value, 0.3, window)
    assert torch.allclose(part, whole[:, context:], atol=1e-6)


def test_a_window_reads_few_keys():
    spans = [SegmentSpan(-1, 0, 5000), SegmentSpan(0, 5000, 5100), SegmentSpan(0, 5100, 5200)]
    runs = tree_attention._runs(spans, CPU, torch.float32, 0, 64)
    assert max(sum(last - first for first, last in run.context) for run in runs) <= 128 + 2 * 64
