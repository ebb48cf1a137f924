"""Updates of one tree: unique tokens a second, MFU, and the peak of memory against the estimate."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import LARGE, SMALL, ModelSizes, learner_in, random_model
from benchmarks.update.flops import peak_flops
from benchmarks.update.ours import make_batch
from benchmarks.update.speed_rows import timed
from benchmarks.update.trees import reasoning_tree, sizes
from ramify.learner.update import Learner
from ramify.modeling.memory_plan import row_bytes
from ramify.modeling.numerics import available_bytes, compute_dtype
from ramify.modeling.recompute import needs_checkpointing, set_checkpointing

_WARM_UPS, _RUNS = 2, 5
_AIM = 0.4
_GIB = 2**30
_PROVES = {
    "update": "a tree's update runs whole on a GPU, forward, backward and optimizer, and how fast",
    "logprobs": "a pass without gradient takes its own kernels",
}


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One tree of the reasoning workload.

    Attributes:
        name: Of the row.
        trajectories: How many the tree has.
        seed: Of the tree.
        token_budget: Tokens that are computed at a time; below the tree's size it is computed in stages.
        shorter: All lengths are divided by it.
    """

    name: str
    trajectories: int
    seed: int
    token_budget: int
    shorter: int = 1


TREES = (
    TreeRow("16k", trajectories=16, seed=4, token_budget=65536),
    TreeRow("32k", trajectories=32, seed=5, token_budget=65536),
    TreeRow("32k in stages of 8k", trajectories=32, seed=5, token_budget=8192),
)
"""16,805 unique tokens, and 32,134 twice."""


def small_updates() -> Iterator[Figure]:
    """At 0.5B."""
    learner = learner_in(random_model(SMALL, "cuda"), torch.bfloat16)
    for tree in TREES:
        yield from measured(learner, SMALL, tree)


def large_updates() -> Iterator[Figure]:
    """At 1.5B."""
    learner = learner_in(random_model(LARGE, "cuda"), torch.bfloat16)
    for tree in TREES[:2]:
        yield from measured(learner, LARGE, tree)


def measured(learner: Learner, model: ModelSizes, work: TreeRow) -> Iterator[Figure]:
    """An update, a logprob pass, and the memory of the update."""
    device = learner.model.device
    batch = make_batch(learner, [reasoning_tree(work.seed, work.trajectories, work.shorter)])
    rows, counts = batch.rows(work.token_budget), sizes(batch.trees)
    computed = min(max(len(row.token_ids) for row in rows), work.token_budget)
    pending = learner.optimizers.missing_bytes()
    recomputes = needs_checkpointing(learner.model, computed, available_bytes(device) - pending)
    set_checkpointing(learner.model, recomputes)
    update = repeated_seconds(lambda: learner.update_rows(rows, batch.denominator), device)
    logprobs = repeated_seconds(lambda: learner.logprobs(rows), device)
    settings = {
        "model": f"random, {model.name}'s sizes, {compute_dtype(learner.model)} on float32 weights",
        "tree": {"trajectories": work.trajectories, "seed": work.seed, "shorter": work.shorter},
        "token_budget": work.token_budget,
        "tokens": asdict(counts),
        "layers_computed_again": recomputes,
    }
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    for what, seconds, passes in (("update", update, 3), ("logprobs", logprobs, 1)):
        middle = statistics.median(seconds)
        mfu = None if peak is None else passes * model.shape.packed(counts) / middle / peak
        yield Figure(
            f"{what}.{model.name}.{work.name}",
            "unique tokens a second",
            counts.unique / middle,
            f"MFU at least {_AIM}" if what == "update" else "",
            None if mfu is None or what != "update" else mfu >= _AIM,
            {**settings, "seconds": seconds, "mfu": mfu},
            proves=_PROVES[what],
        )
    if device.type == "cuda":
        yield _memory(
            learner,
            f"memory.{model.name}.{work.name}",
            computed,
            lambda: learner.update_rows(rows, batch.denominator),
        )


def repeated_seconds(work: Callable[[], object], device: torch.device) -> list[float]:
    """Seconds of each of some runs, after two that are not counted."""

    def once() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()

    run = timed(once)
    for _ in range(_WARM_UPS):
        run()
    return [run() for _ in range(_RUNS)]


def _memory(learner: Learner, name: str, tokens: int, update: Callable[[], object]) -> Figure:
    """The peak of an update over what is estimated: what is there before it, gradients, gathered weights, and the row."""
    dtype, model = compute_dtype(learner.model), learner.model
    row = row_bytes(model.config, tokens, dtype.itemsize, "cuda")
    count = sum(parameter.numel() for parameter in model.parameters())
    gathered = 0 if dtype == torch.float32 else count * dtype.itemsize
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    parts = {
        "weights and optimizer": torch.cuda.memory_allocated(),
        "gradients": count * 4,
        "gathered weights": gathered,
        "layers of the row": row.recomputed if recomputes else row.layers,
        "head": row.head,
    }
    update()
    torch.cuda.synchronize()
    peak, estimated = torch.cuda.max_memory_allocated(), sum(parts.values())
    settings = {
        "peak_gib": peak / _GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / _GIB,
        "estimated_gib": {key: value / _GIB for key, value in parts.items()},
        "row_tokens": tokens,
        "layers_computed_again": recomputes,
    }
    ratio = peak / estimated
    return Figure(
        name,
        "peak of memory / the estimate",
        ratio,
        "at most 1",
        ratio <= 1,
        settings,
        proves="what ramify doctor says fits does fit",
    )
