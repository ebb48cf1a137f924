"""Row 12: questions a second of an evaluation, attempts on their own against rounds with a barrier.

The engine, the tools and the latencies are those of row 4.tail. The other side is the same barrier loop, which starts a
batch of questions together and waits in each round for the slowest of all calls. Nothing branches on either side. Both
draw the turns of their attempts from one distribution, under names of their own. Time is virtual.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.harness.rows import Row
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from benchmarks.rollout.schedule_barrier import BarrierLoop, Rounds
from benchmarks.rollout.schedule_engine import CapacityEngine
from benchmarks.rollout.schedule_runs import H200_7B, Batch, describe
from benchmarks.rollout.schedule_tools import PATIENT_SPECS
from benchmarks.rollout.schedule_workload import DEEPSEARCH, MAX_CALLS, REASONING, Script, Waits
from ramify.algos.branch_rules import FlatBrancher
from ramify.core.protocols import Event
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Trajectory, Tree, TreeKey
from ramify.engines.virtual_clock import run_virtual
from ramify.rewards.trajectory_rewards import score_tree
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.grow import grow_requests
from ramify.rollout.plan import TreeRequest
from ramify.rollout.settings import AgentParts
from ramify.rollout.tool_set import ToolSet

_SEEDS = range(40)
"""As in row 4.tail: whether a call hangs in a round makes 60 or 120 s, so fewer batches give an unstable median."""
_QUESTIONS, _ATTEMPTS, _BARRIER_BATCH = 64, 4, 64
_PAGE = 16
_TARGET = 5.0


@dataclass(frozen=True, slots=True)
class _Done:
    seconds: float
    written: int
    busy: float


class _Unheard:
    """An event sink that forgets."""

    def emit(self, event: Event) -> None:
        """Nothing is kept."""


class _NoScore:
    """Scoring has rows of its own."""

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Zero for each."""
        return tuple(Reward(0.0, {}) for _ in trajectories)


def evaluation() -> Sequence[Row]:
    """The row."""
    runs: dict[str, dict[str, list[_Done]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_tokenizer(folder, 0)
        for workload in (REASONING, DEEPSEARCH):
            script = Script(folder, workload)
            sides: dict[str, list[_Done]] = {"ours": [], "barrier": [], "patient": []}
            for seed in _SEEDS:
                batch = Batch(script, script.problems(seed, _QUESTIONS), Waits(seed, hanging=True))
                sides["ours"].append(_ours(batch))
                sides["barrier"].append(_barrier(batch))
                sides["patient"].append(_ours(replace(batch, specs=PATIENT_SPECS)))
            runs[workload.name] = sides
    return [_row(runs)]


def _ours(batch: Batch) -> _Done:
    script = batch.script
    engine = CapacityEngine(H200_7B, _PAGE, script.turn, script.tokenizer)
    agent = AgentParts(
        engine=engine,
        renderer=script.renderer,
        environment=ToolSet({tool.spec.name: tool for tool in batch.tools()}),
        brancher=FlatBrancher(probe_tokens=0),
        limits=RolloutLimits(n=1, max_tokens=script.workload.max_tokens, max_calls=MAX_CALLS),
        events=_Unheard(),
        run_seed=0,
        slots=engine.info().num_slots,
    )
    planned = [
        TreeRequest(problem, TreeKey(step=attempt, slot=slot))
        for slot, problem in enumerate(batch.problems)
        for attempt in range(_ATTEMPTS)
    ]

    async def scored(tree: Tree, _: float) -> ScoredTree:
        return await score_tree(_NoScore(), tree)

    async def run() -> None:
        try:
            await grow_requests(agent, planned, scored)
        finally:
            await engine.close()

    _, seconds = run_virtual(run())
    return _Done(seconds, engine.work.written, engine.work.busy_seconds)


def _barrier(batch: Batch) -> _Done:
    """Batches of questions one after the other, each in rounds."""
    script = batch.script
    engine = CapacityEngine(H200_7B, _PAGE, script.turn, script.tokenizer)
    rule = Rounds(_ATTEMPTS, _ATTEMPTS, 0.0, script.workload.max_tokens, supplements_branch=False)

    async def run() -> None:
        try:
            for start in range(0, len(batch.problems), _BARRIER_BATCH):
                problems = batch.problems[start : start + _BARRIER_BATCH]
                loop = BarrierLoop(engine, script.renderer, batch.tools(), problems, rule)
                await loop.run()
                if loop.leaves != _ATTEMPTS * len(problems):
                    raise ValueError("an attempt is missing")
        finally:
            await engine.close()

    _, seconds = run_virtual(run())
    return _Done(seconds, engine.work.written, engine.work.busy_seconds)


def _row(runs: Mapping[str, Mapping[str, Sequence[_Done]]]) -> Row:
    figures = {name: _compared(sides) for name, sides in runs.items()}
    decides = min(figures, key=lambda name: figures[name]["ratio"])
    worst = figures[decides]
    return Row(
        "12",
        f"virtual questions per second of an evaluation, {_ATTEMPTS} attempts each, tail latencies: ours / rounds with a "
        "barrier",
        worst["ours"],
        worst["barrier"],
        worst["ratio"],
        f"at least {_TARGET:g}",
        worst["ratio"] >= _TARGET,
        {
            f"{name}, {side}": [_QUESTIONS / done.seconds for done in of]
            for name, sides in runs.items()
            for side, of in sides.items()
        },
        {"decides": f"{decides}, the smaller ratio", "workloads": figures, **_settings()},
    )


def _compared(sides: Mapping[str, Sequence[_Done]]) -> dict[str, float]:
    seconds = {side: median(done.seconds for done in of) for side, of in sides.items()}
    return {
        "ours": _QUESTIONS / seconds["ours"],
        "barrier": _QUESTIONS / seconds["barrier"],
        "ratio": seconds["barrier"] / seconds["ours"],
        "ratio_of_means": mean(d.seconds for d in sides["barrier"]) / mean(d.seconds for d in sides["ours"]),
        "ratio_with_the_timeouts_of_the_barrier_and_no_hedge": seconds["barrier"] / seconds["patient"],
        "engine_busy_ours": median(done.busy / done.seconds for done in sides["ours"]),
        "engine_busy_barrier": median(done.busy / done.seconds for done in sides["barrier"]),
        "written_ours": mean(done.written for done in sides["ours"]),
        "written_barrier": mean(done.written for done in sides["barrier"]),
    }


def _settings() -> dict[str, Any]:
    shared = {key: value for key, value in describe().items() if key != "batch"}
    return {
        "batch": f"{_QUESTIONS} questions, {_ATTEMPTS} attempts each, at most {MAX_CALLS} calls, nothing branches",
        "barrier_batch": f"{_BARRIER_BATCH} questions",
        "runs": len(_SEEDS),
        "seeds": f"{_SEEDS[0]} to {_SEEDS[-1]}: questions and latencies",
        **shared,
    }


ROWS = {"12": evaluation}
