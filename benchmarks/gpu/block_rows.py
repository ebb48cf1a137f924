"""A block of a 7B model: its update's time and memory, and what compiling blocks one by one gains.

A 7B model with its optimizer does not fit one GPU, and a single block of it has the same shapes. Models of one and of three
blocks differ by two blocks; the rest (embedding, head) is in both.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import BLOCK_7B, LAYERS_7B, ModelSizes, learner_in, random_model
from benchmarks.gpu.update_rows import TREES, TreeRow, repeated_seconds
from benchmarks.update.flops import peak_flops
from benchmarks.update.ours import gradients_of, make_batch, relative_difference
from benchmarks.update.trees import reasoning_tree, sizes
from ramify.learner.update import Learner

_FEW, _MORE = 1, 3
_AIM = 0.4
_MOST_ERROR = 1e-3
_SHORTER = 8
_GIB = 2**30


def block_of_7b() -> Iterator[Figure]:
    """At 16k tokens in bfloat16."""
    yield from block(BLOCK_7B, TREES[0], "cuda", torch.bfloat16)


def compiled_blocks() -> Iterator[Figure]:
    """The same shapes with `torch.compile` on each block and without."""
    yield from compiled(BLOCK_7B, TREES[0], "cuda", torch.bfloat16)


def block(model: ModelSizes, tree: TreeRow, device: str, dtype: torch.dtype) -> Iterator[Figure]:
    """Time, MFU and memory of one block in an update."""
    seconds, peaks, operations = {}, {}, {}
    counts = sizes([reasoning_tree(tree.seed, tree.trajectories, tree.shorter)])
    for layers in (_FEW, _MORE):
        some_layers = replace(model, layers=layers)
        learner = learner_in(random_model(some_layers, device), dtype)
        update = _update_of(learner, tree)
        seconds[layers] = statistics.median(repeated_seconds(update, learner.model.device))
        peaks[layers] = _peak_above(update, learner.model.device)
        operations[layers] = 3 * some_layers.shape.packed(counts)
        del learner, update
    between = _MORE - _FEW
    per_block = (seconds[_MORE] - seconds[_FEW]) / between
    whole = seconds[_FEW] + (LAYERS_7B - _FEW) * per_block
    peak = peak_flops(torch.cuda.get_device_name(device)) if device != "cpu" else None
    mfu = None if peak is None else (operations[_MORE] - operations[_FEW]) / between / per_block / peak
    settings = {
        "tokens": counts.unique,
        "seconds_by_layers": seconds,
        "mfu": mfu,
        "seconds_of_28_layers_by_arithmetic": whole,
    }
    yield Figure(
        f"block.{model.name}.seconds",
        "seconds of one block in an update",
        per_block,
        f"MFU at least {_AIM}",
        None if mfu is None else mfu >= _AIM,
        settings,
        proves="a 7B model's shapes (28 heads of 128 with 4 of keys, a width of 18,944) have kernels, and how long its update takes",
    )
    yield Figure(
        f"block.{model.name}.memory",
        "GiB that a block adds to the peak of an update above weights and optimizer",
        (peaks[_MORE] - peaks[_FEW]) / between / _GIB,
        settings={"gib_by_layers": {layers: value / _GIB for layers, value in peaks.items()}},
        proves="what 28 blocks of a row of 16k tokens take, gradients of their weights with them",
    )


def compiled(
    model: ModelSizes,
    tree: TreeRow,
    device: str,
    dtype: torch.dtype,
    backend: str = "inductor",
    layers: int = _MORE,
) -> Iterator[Figure]:
    """Compare updates of `layers` compiled blocks and of plain ones: seconds, the time of compiling, and gradients."""
    exact, fast = (
        learner_in(random_model(replace(model, layers=number), device), kind)
        for number, kind in ((_FEW, torch.float32), (layers, dtype))
    )
    at = fast.model.device
    # A short tree: float32 has no flash kernel, and rounding would hide a wrong gradient in 16 bits.
    short = make_batch(exact, [reasoning_tree(tree.seed, tree.trajectories, max(tree.shorter, _SHORTER))])
    _, expected = gradients_of(exact, short.rows(tree.token_budget), short.denominator)
    update = _update_of(fast, tree)
    off = statistics.median(repeated_seconds(update, at))
    for layer in (*exact.model.model.layers, *fast.model.model.layers):
        # One compiled function for rows of any length, and attention apart from it where the graph breaks.
        layer.compile(dynamic=True, backend=backend)
    started = time.perf_counter()
    update()
    starting = time.perf_counter() - started
    on = statistics.median(repeated_seconds(update, at))
    _, actual = gradients_of(exact, short.rows(tree.token_budget), short.denominator)
    away = relative_difference(actual, expected)
    settings = {"seconds": {"off": off, "on": on}, "seconds_of_the_first_update": starting}
    settings |= {"backend": backend, "pays_after_updates": starting / (off - on) if on < off else None}
    yield Figure(
        f"compile.{model.name}.gain",
        "seconds of an update, blocks as they are / blocks compiled",
        off / on,
        settings=settings,
        proves="whether compiling each block should be the default on GPUs",
    )
    yield Figure(
        f"compile.{model.name}.error",
        "relative difference of all gradients in float32, blocks compiled / as they are",
        away,
        f"at most {_MOST_ERROR}",
        away <= _MOST_ERROR,
        proves="compiled blocks with recomputed activations and FlexAttention train the same",
    )


def _update_of(learner: Learner, tree: TreeRow) -> Callable[[], object]:
    batch = make_batch(learner, [reasoning_tree(tree.seed, tree.trajectories, tree.shorter)])
    rows = batch.rows(tree.token_budget)
    return lambda: learner.update_rows(rows, batch.denominator)


def _peak_above(update: Callable[[], object], device: torch.device) -> int:
    """Bytes that an update takes at most above what is there before it; 0 without a GPU."""
    if device.type != "cuda":
        update()
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    update()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
