"""How long the work of a recipe takes on this machine, from two short measurements: a rough figure to plan with."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ramify.commands.estimate import Work

_SIDE = 1536
_COPIED = 1 << 27
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """What a device does in a second: floating-point operations of a matrix product, bytes read."""

    flops: float
    bandwidth: float

    def seconds(self, work: Work, parameters: int, slots: int, size: int) -> float:
        """Of one step, where each trajectory has all the tokens that it may have.

        A token costs 2 operations for each parameter to write and 6 to learn from; each round of writing reads all
        weights once for at most `slots` trajectories. Tools, attention and prefixes that trajectories share are left out.

        Args:
            work: Of the recipe.
            parameters: Of the model.
            slots: Trajectories that are written at once.
            size: Bytes of a parameter.
        """
        tokens = work.per_step * work.tokens
        rounds = tokens / min(slots, work.per_step)
        writing = max(2 * parameters * tokens / self.flops, rounds * parameters * size / self.bandwidth)
        learning = 6 * parameters * tokens / self.flops
        return writing * work.writes + learning * work.trains


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
