"""The backward pass of attention over a tree's row, against a dense mask in float32."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import torch

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import BLOCK_7B, SMALL, ModelSizes
from benchmarks.gpu.update_rows import TREES, TreeRow, repeated_seconds
from benchmarks.update.trees import reasoning_tree
from ramify.algos.sft import counted_once
from ramify.core.records import SegmentSpan
from ramify.learner.flex_attention import FlexTreeAttention
from ramify.learner.pack import pack

_MOST_ERROR = 0.02
_SHORT = TreeRow("2k", trajectories=16, seed=4, token_budget=65536, shorter=8)
"""A dense mask computes all its scores at once."""
_NAMES = ("query", "key", "value")


class Attend(Protocol):
    """Attention over a row, of one layer."""

    def __call__(
        self, layer_index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [1, Hq, R, D], key and value [1, Hkv, R, D] -> [1, R, Hq, D]."""
        ...


_Plan: TypeAlias = Callable[[Sequence[SegmentSpan], torch.device], Attend]


def flex_backward() -> Iterator[Figure]:
    """FlexAttention at the heads of 0.5B and 7B, in bfloat16: right on a short tree, and its time on a long one."""
    for sizes in (SMALL, BLOCK_7B):
        yield gradient_error(FlexTreeAttention, sizes, _SHORT, torch.device("cuda"), torch.bfloat16)
        yield backward_seconds(FlexTreeAttention, sizes, TREES[0], torch.device("cuda"), torch.bfloat16)


def gradient_error(
    plan: _Plan, sizes: ModelSizes, tree: TreeRow, device: torch.device, dtype: torch.dtype
) -> Figure:
    """The largest relative error among the gradients of queries, keys and values."""
    segments = _segments(tree)
    inputs = _inputs(sizes, segments[-1].stop, device, dtype)
    ours = _gradients(plan(segments, device), inputs)
    exact = _gradients(_dense(segments, device), [x.float() for x in inputs])
    errors = {
        name: float((a.float() - b).norm() / b.norm()) for name, a, b in zip(_NAMES, ours, exact, strict=True)
    }
    largest = max(errors.values())
    return Figure(
        f"attention.{sizes.name}.error",
        "largest relative error of a gradient against a dense mask in float32",
        largest,
        f"at most {_MOST_ERROR}",
        largest <= _MOST_ERROR,
        {"errors": errors, "tokens": segments[-1].stop, "type": str(dtype)},
        proves="FlexAttention's backward pass has a kernel for these heads and sees the tree's mask",
    )


def backward_seconds(
    plan: _Plan, sizes: ModelSizes, tree: TreeRow, device: torch.device, dtype: torch.dtype
) -> Figure:
    """The time of one layer's attention over a long tree, forward and backward, after its kernels are compiled."""
    segments = _segments(tree)
    inputs = _inputs(sizes, segments[-1].stop, device, dtype)
    attend = plan(segments, device)
    seconds = repeated_seconds(lambda: _gradients(attend, inputs), device)
    return Figure(
        f"attention.{sizes.name}.seconds",
        "seconds of one layer's attention, forward and backward",
        statistics.median(seconds),
        settings={"seconds": seconds, "tokens": segments[-1].stop, "type": str(dtype)},
        proves="a row of another length takes the kernels that are compiled already",
    )


def _segments(tree: TreeRow) -> Sequence[SegmentSpan]:
    whole = reasoning_tree(tree.seed, tree.trajectories, tree.shorter)
    (row,) = pack([counted_once(whole)], sum(len(node.token_ids) for node in whole.nodes))
    return row.segments


def _inputs(sizes: ModelSizes, tokens: int, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    width = sizes.hidden // sizes.heads
    return [
        torch.randn(1, heads, tokens, width, generator=generator).to(device, dtype)
        for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    ]


def _gradients(attend: Attend, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    query, key, value = (x.detach().requires_grad_() for x in inputs)
    output = attend(0, query, key, value, query.shape[-1] ** -0.5)
    by_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return torch.autograd.grad(output, (query, key, value), by_output)


def _dense(segments: Sequence[SegmentSpan], device: torch.device) -> Attend:
    size = segments[-1].stop
    mask = torch.zeros(size, size, dtype=torch.bool)
    for number, segment in enumerate(segments):
        above = number
        while above >= 0:
            mask[segment.start : segment.stop, segments[above].start : segments[above].stop] = True
            above = segments[above].parent
    mask = mask.tril().to(device)

    def attend(
        layer_index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        del layer_index
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
        return output.transpose(1, 2)

    return attend
