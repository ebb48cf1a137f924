"""What the calls of a step wait for: the heavy tail of the schedule rows, both sides from the same draws."""

from collections.abc import Sequence

import numpy as np

from benchmarks.rollout.schedule_tools import DEADLINE, HEDGE, TIMEOUTS
from benchmarks.rollout.schedule_workload import LATENCIES

FASTER = 10.0
"""Seconds of waiting are divided by it, so that a step takes seconds; computing is not, so waiting weighs less than it would."""
DEADLINE_SECONDS, HEDGE_SECONDS = DEADLINE / FASTER, HEDGE / FASTER
"""Of a call of ours; after the second the same call is issued once more."""
HANG_SECONDS = TIMEOUTS["search"] / FASTER
"""A call that hangs ends for TRL after the timeout of the released scripts: it has no deadline of its own."""
ISSUES = 2
"""A call, and the same call issued once more."""


def waits(step: int, results: Sequence[Sequence[object]]) -> list[list[list[float]]]:
    """Draw the seconds of each issue of each call of a step. [trajectory][call][issue]"""
    generator = np.random.default_rng([9, step])
    latency = LATENCIES["search"]

    def draw() -> float:
        seconds = latency.seconds.draw(generator) / FASTER
        return HANG_SECONDS if generator.random() < latency.hangs else seconds

    return [[[draw() for _ in range(ISSUES)] for _ in calls] for calls in results]
