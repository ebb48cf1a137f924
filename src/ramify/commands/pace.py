"""How long the work of a recipe takes, roughly: from two rates, which are measured here or assumed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ramify.commands.estimate import Memory
from ramify.commands.work import Work

WRITING = 2
"""Floating-point operations for each token and parameter of what a model writes."""

_SIDE = 1536
_COPIED = 1 << 27
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """What a device does in a second: floating-point operations of a matrix product, bytes read."""

    flops: float
    bandwidth: float

    def seconds(self, work: Work, memory: Memory, slots: int, *, recomputes: bool, engines: int = 1) -> float:
        """Of one step, where each trajectory has all the tokens that it may have.

        Each round of writing reads all weights once, for at most `slots` trajectories, and their keys and values, which
        are half of the store on average. Tools, the products of attention, traffic between GPUs and prefixes that
        trajectories share are left out.

        Args:
            work: Of the recipe.
            memory: Of the recipe.
            slots: Trajectories that one engine writes at once.
            recomputes: Layers are computed again in the backward pass.
            engines: Devices that write, each with its own part of the trajectories.
        """
        parameters = memory.job.size.base
        tokens = work.per_step * work.tokens
        at_once = min(slots * engines, work.per_step)
        read = parameters * memory.job.number_bytes * engines + at_once * memory.slot // 2
        writing = max(WRITING * parameters * tokens / self.flops, tokens / at_once * read / self.bandwidth)
        learning = learning_operations(memory, recomputes) * parameters * tokens / self.flops
        return writing / engines * work.writes + learning / memory.job.processes * work.trains


RATES = {4: Pace(10e12, 0.5e12), 2: Pace(60e12, 0.5e12)}
"""Of one GPU, by the bytes of a number. Assumed, and nowhere measured. An A100's data sheet says 19.5 (float32) and 312 TFLOP/s
(bfloat16) and 2.0 TB/s, that of an RTX 3090 35.6, 71 and 0.94, that of an H100 SXM 67, 989 and 3.4. Float32 products do not use
TF32 here."""
DATA_SHEETS = {
    4: "data sheets: A100 19.5, H100 67 TFLOP/s in float32; 2.0 and 3.4 TB/s",
    2: "data sheets: A100 312, H100 989 TFLOP/s in bfloat16; 2.0 and 3.4 TB/s",
}


def learning_operations(memory: Memory, recomputes: bool) -> int:
    """Floating-point operations for each token and parameter: forward, again, and backward by inputs and by weights."""
    return 2 + 2 * recomputes + 2 + 2 * (not memory.job.size.adapter)


def whole_run(work: Work, seconds: float) -> str:
    """Behind the time of a step: that of the run, where its steps are known."""
    return "" if work.steps in (None, 1) else f", {in_time(seconds * (work.steps or 1))} for the whole run"


def in_time(seconds: float) -> str:
    """A time for a user."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"


def measure_pace(device: str) -> Pace:
    """Measure a device ("cpu" or "cuda") in float32; takes about a second."""
    one = torch.ones(_SIDE, _SIDE, device=device)
    many = torch.ones(_COPIED // 4, device=device)
    product = _fastest(lambda: one @ one, device)
    reading = _fastest(many.sum, device)
    return Pace(2 * _SIDE**3 / product, _COPIED / reading)


def _fastest(work: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of a few rounds; the first, which may load a library, does not count."""
    seconds = []
    for _ in range(_ROUNDS + 1):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
