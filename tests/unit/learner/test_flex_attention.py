import numpy as np
import pytest
import torch

from ramify.core.records import SegmentSpan
from ramify.learner.flex_attention import FlexTreeAttention
from ramify.learner.tree_attention import TreeAttention

# Depth-first; segment 4 starts a new context inside the subtree of segment 1, segment 8 is another tree.
PARENTS = (-1, 0, 1, 1, -1, 4, 1, 0, -1, 8)


def spans(seed):
    sizes = np.random.default_rng(seed).integers(1, 60, len(PARENTS))
    stops = np.cumsum(sizes).tolist()
    return [
        SegmentSpan(parent, stop - int(size), stop)
        for parent, size, stop in zip(PARENTS, sizes, stops, strict=True)
    ]


def states(size, kv_heads, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, size, 16, generator=generator).to(device) for heads in (4, kv_heads, kv_heads)
    ]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_forward_equals_that_of_the_runs(seed, kv_heads):
    segments = spans(seed)
    query, key, value = states(segments[-1].stop, kv_heads)
    device = torch.device("cpu")
    with torch.no_grad():
        ours = FlexTreeAttention(segments, device, compiled=False)(0, query, key, value, 0.3)
        runs = TreeAttention(segments, device, torch.float32)(0, query, key, value, 0.3)
    assert torch.allclose(ours, runs, atol=1e-5)


@pytest.mark.gpu
def test_forward_and_backward_equal_those_of_the_runs():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    for seed in range(3):
        segments = spans(seed)
        inputs = [x.requires_grad_() for x in states(segments[-1].stop, 2, device)]
        plans = (FlexTreeAttention(segments, device), TreeAttention(segments, device, torch.float32))
        outputs = [plan(0, *inputs, 0.3) for plan in plans]
        grads = [torch.autograd.grad(output.square().sum(), inputs) for output in outputs]
        assert torch.allclose(*outputs, atol=1e-4)
        for ours, runs in zip(*grads, strict=True):
            assert torch.allclose(ours, runs, atol=1e-3)
