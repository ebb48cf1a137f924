"""Rows 4.clean, 4.tail and 4b: our schedule against rounds with a barrier, and against the time that nothing can beat.

Every run has its own batch and its own latencies. Time is virtual, so a run gives the same figures on any machine.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.harness.rows import Row
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from benchmarks.rollout.schedule_engine import EmptyEngine
from benchmarks.rollout.schedule_grants import cost_of_logical_time
from benchmarks.rollout.schedule_runs import Batch, Done, VirtualRollout, describe, grow_ours, run_barrier
from benchmarks.rollout.schedule_tools import PATIENT_SPECS
from benchmarks.rollout.schedule_workload import DEEPSEARCH, REASONING, Script, Waits

_SEEDS = range(40)
"""Whether a call hangs in a round makes 60 or 120 s; the median of 15 batches still jumps between such steps."""
_PROBLEMS = 16


@dataclass(frozen=True, slots=True)
class _Run:
    """One batch: ours, the released loop, and how long ours takes when the engine has no load."""

    ours: VirtualRollout
    barrier: Done
    chain: float

    @property
    def bound(self) -> float:
        return max(self.ours.done.work.busy_seconds, self.chain)


def schedule() -> Sequence[Row]:
    """The three rows."""
    clean, tail, same_trees, patient = {}, {}, {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_tokenizer(folder, 0)
        for workload in (REASONING, DEEPSEARCH):
            script = Script(folder, workload)
            clean[workload.name] = [_run(batch) for batch in _batches(script, hanging=False)]
            tail[workload.name] = [_run(batch) for batch in _batches(script, hanging=True)]
            same_trees[workload.name] = _on_the_same_trees(script, clean[workload.name])
            patient[workload.name] = _without_short_deadlines(script, tail[workload.name])
    return [
        _against_barrier(
            "4.clean", "no call hangs", 2, clean, {"barrier_on_the_very_same_trees": same_trees}
        ),
        _against_barrier(
            "4.tail",
            "0.5 % of searches and 0.3 % of programs hang",
            5,
            tail,
            {"ours_with_the_timeouts_of_the_barrier_and_no_hedge": patient},
        ),
        _against_bound({"clean": clean, "tail": tail}),
    ]


def _batches(script: Script, hanging: bool) -> Iterator[Batch]:
    for seed in _SEEDS:
        yield Batch(script, script.problems(seed, _PROBLEMS), Waits(seed, hanging))


def _run(batch: Batch) -> _Run:
    alone = grow_ours(batch, EmptyEngine)
    return _Run(grow_ours(batch), run_barrier(batch, supplements_branch=True), alone.done.seconds)


def _on_the_same_trees(script: Script, ours: Sequence[_Run]) -> dict[str, float]:
    """The ratio when the loop's supplementary roots do not branch, as ours do not: then the work is equal."""
    seconds = []
    for batch, run in zip(_batches(script, hanging=False), ours, strict=True):
        done = run_barrier(batch, supplements_branch=False)
        if (done.work.written, done.calls) != (run.ours.done.work.written, run.ours.done.calls):
            raise ValueError("the two sides did not grow the same trees")
        seconds.append(done.seconds)
    return {
        "seconds": median(seconds),
        "ratio": median(seconds) / median(run.ours.done.seconds for run in ours),
    }


def _without_short_deadlines(script: Script, runs: Sequence[_Run]) -> dict[str, float]:
    """Measure the schedule alone: every call may take as long as in the barrier loop."""
    seconds = [
        grow_ours(replace(batch, specs=PATIENT_SPECS)).done.seconds
        for batch in _batches(script, hanging=True)
    ]
    barrier = [run.barrier.seconds for run in runs]
    return {
        "seconds": median(seconds),
        "ratio": median(barrier) / median(seconds),
        "ratio_of_means": mean(barrier) / mean(seconds),
    }


def _against_barrier(
    row: str, condition: str, least: float, runs: Mapping[str, Sequence[_Run]], more: Mapping[str, Any]
) -> Row:
    figures = {name: _compared(of) for name, of in runs.items()}
    decides = min(figures, key=lambda name: figures[name]["ratio"])
    worst = figures[decides]
    return Row(
        row,
        f"virtual seconds of a rollout of 256 trajectories, {condition}: rounds with a barrier / ours",
        worst["ours_s"],
        worst["barrier_s"],
        worst["ratio"],
        f"at least {least:g}",
        worst["ratio"] >= least,
        {
            f"{name}, {side}": values
            for name, of in runs.items()
            for side, values in (
                ("ours", [run.ours.done.seconds for run in of]),
                ("barrier", [run.barrier.seconds for run in of]),
            )
        },
        {"decides": f"{decides}, the smaller ratio", "workloads": figures, **more, **_settings()},
    )


def _compared(runs: Sequence[_Run]) -> dict[str, float]:
    ours, barrier = [run.ours.done for run in runs], [run.barrier for run in runs]
    medians = {
        "ours_s": median(run.seconds for run in ours),
        "barrier_s": median(run.seconds for run in barrier),
    }
    return {
        **medians,
        "ratio": medians["barrier_s"] / medians["ours_s"],
        "ratio_of_means": mean(run.seconds for run in barrier) / mean(run.seconds for run in ours),
        "engine_busy_ours": median(run.work.busy_seconds / run.seconds for run in ours),
        "engine_busy_barrier": median(run.work.busy_seconds / run.seconds for run in barrier),
        "written_ours": mean(run.work.written for run in ours),
        "written_barrier": mean(run.work.written for run in barrier),
        "calls_ours": mean(run.calls for run in ours),
        "calls_barrier": mean(run.calls for run in barrier),
        "issued_ours": mean(run.ours.issued for run in runs),
        "most_calls_at_once_ours": max(run.ours.most_at_once for run in runs),
    }


def _against_bound(conditions: Mapping[str, Mapping[str, Sequence[_Run]]]) -> Row:
    runs = {f"{name}, {condition}": of for condition, by in conditions.items() for name, of in by.items()}
    ratios = {name: [run.ours.done.seconds / run.bound for run in of] for name, of in runs.items()}
    worst = max(ratios, key=lambda name: median(ratios[name]))
    ratio = median(ratios[worst])
    return Row(
        "4b",
        "virtual seconds of a rollout / the larger of the engine's busy time and the rollout on an engine without load",
        median(run.ours.done.seconds for run in runs[worst]),
        median(run.bound for run in runs[worst]),
        ratio,
        "at most 1.05",
        ratio <= 1.05,
        ratios,
        {
            "decides": f"{worst}, the largest median",
            "medians": {name: median(values) for name, values in ratios.items()},
            "largest": {name: max(values) for name, values in ratios.items()},
            "bound": "the engine is busy while it writes or reads for anybody; without load, a rollout is its longest"
            " chain of turns and calls, deadlines, waits for grants and top-ups included",
            **_settings(),
        },
    )


def _settings() -> dict[str, Any]:
    return {"runs": len(_SEEDS), "seeds": f"{_SEEDS[0]} to {_SEEDS[-1]}: batch and latencies", **describe()}


ROWS = {"4.clean": schedule, "4.tail": schedule, "4b": schedule, "4.grants": cost_of_logical_time}
