"""One rollout of either side of the schedule rows, on a fresh virtual clock."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias
from unittest.mock import patch

from benchmarks.rollout.schedule_barrier import ATTEMPTS, THREADS, BarrierLoop, Rounds
from benchmarks.rollout.schedule_engine import CapacityEngine, EmptyEngine, EngineCosts, Work
from benchmarks.rollout.schedule_tools import DEADLINE, HEDGE, SPECS, TIMEOUTS, TimedTool
from benchmarks.rollout.schedule_workload import LATENCIES, MAX_CALLS, Script, Waits
from ramify.algos.branch_arpo import BernoulliBrancher
from ramify.core.messages import Problem, ToolSpec
from ramify.core.protocols import Brancher, Event
from ramify.core.tree import Tree
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout import branching
from ramify.rollout.branch_budget import BranchBudget
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.grow import grow_requests
from ramify.rollout.plan import step_requests
from ramify.rollout.settings import AgentParts
from ramify.rollout.tool_set import ToolSet

N, M, COIN, PROBE = 16, 8, 0.5, 20
_PAGE = 16
_PARAMETERS = 6.53e9 + 3584 * 152064  # blocks and head of Qwen2.5-7B
_KV_BYTES = 2 * 28 * 512 * 2  # of a token: keys and values, 28 layers, 4 heads of 128, bf16
_BANDWIDTH = 0.80 * 4.8e12
_FLOPS = 0.55 * 989e12
H200_7B = EngineCosts(
    step=2 * _PARAMETERS / _BANDWIDTH + 6e-4,
    context_token=_KV_BYTES / _BANDWIDTH,
    prefill_token=2 * _PARAMETERS / _FLOPS,
)
EngineType: TypeAlias = type[CapacityEngine] | type[EmptyEngine]


def describe() -> dict[str, Any]:
    """Engine, latencies and limits, for the settings of a row."""
    return {
        "clock": "virtual",
        "batch": f"16 problems, n {N}, m {M}, at most {MAX_CALLS} calls, a branch with probability {COIN}",
        "engine": {
            "what": "7B bf16 on one H200 by roofline: 80 % of 4.8 TB/s, 55 % of 989 TFLOP/s in prefill, 0.6 ms a step",
            "decode_step_s": f"{H200_7B.step:.3g} + {H200_7B.context_token:.3g} x context tokens of all sequences",
            "prefill_token_s": float(f"{H200_7B.prefill_token:.3g}"),
            "prefix_cache_page": _PAGE,
        },
        "latencies": {name: asdict(latency) for name, latency in LATENCIES.items()},
        "ours": {"deadline_s": DEADLINE, "hedge_s": {"search": HEDGE}, "calls_at_once": "no limit"},
        "barrier": {"threads": THREADS, "attempts": ATTEMPTS, "timeout_s": TIMEOUTS},
    }


class _SlotOrderCoin(BernoulliBrancher):
    """Serves the first root first, as the released loop does."""

    @property
    def keeps_slot_order(self) -> bool:
        """It does."""
        return True


def coin() -> Brancher:
    """The same draw decides the same tool result on both sides."""
    return _SlotOrderCoin(m=M, children=1, probe_tokens=PROBE, alpha=COIN, beta=0.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a rollout is given."""

    script: Script
    problems: Sequence[Problem]
    waits: Waits
    specs: Sequence[ToolSpec] = SPECS

    def tools(self) -> list[TimedTool]:
        """Fresh ones."""
        return [TimedTool(spec, self.script.result, self.waits.seconds) for spec in self.specs]


@dataclass(frozen=True, slots=True)
class Done:
    """One rollout: virtual seconds, what the engine did, what the trajectories asked of the tools."""

    seconds: float
    work: Work
    calls: int


@dataclass(frozen=True, slots=True)
class VirtualRollout:
    """A rollout of ours: trees, when each was whole, waits of granted branches, calls issued and most at once."""

    done: Done
    trees: tuple[Tree, ...]
    tree_seconds: tuple[float, ...]
    waits: tuple[float, ...]
    issued: int
    most_at_once: int


class _GrantWaits(list[float]):
    """Implements `core.protocols.EventSink`: keeps the waits of granted branches."""

    def emit(self, event: Event) -> None:
        """Keep a wait; the rest is forgotten."""
        if event.kind == "grant" and event.fields["children"]:
            self.append(event.seconds)


def grow_ours(
    batch: Batch,
    engine_type: EngineType = CapacityEngine,
    rule: Brancher | None = None,
    book: type[BranchBudget] = BranchBudget,
) -> VirtualRollout:
    """Grow the batch's trees with `ramify.rollout`; its budget is spent by `book`."""
    tools, waits, whole = batch.tools(), _GrantWaits(), list[float]()
    script = batch.script
    engine = engine_type(H200_7B, _PAGE, script.turn, script.tokenizer)
    parts = AgentParts(
        engine=engine,
        renderer=script.renderer,
        environment=ToolSet({tool.spec.name: tool for tool in tools}),
        brancher=rule or coin(),
        limits=RolloutLimits(n=N, max_tokens=script.workload.max_tokens, max_calls=MAX_CALLS),
        events=waits,
        run_seed=0,
    )

    async def run() -> tuple[Tree, ...]:
        loop = asyncio.get_running_loop()

        async def ended(tree: Tree, _: float) -> Tree:
            whole.append(loop.time())
            return tree

        try:
            return await grow_requests(parts, step_requests(batch.problems, 0), ended)
        finally:
            await engine.close()

    # A rollout has one way to spend its budget; the others exist for one row here, so there is no setting for them.
    with patch.object(branching, "BranchBudget", book):
        trees, seconds = run_virtual(run())
    if any(len(tree.trajectories) != N for tree in trees):
        raise ValueError("a tree does not have its n trajectories")
    calls = sum(len(node.results) for tree in trees for node in tree.nodes)
    issued = sum(tool.issued.total() for tool in tools)
    most = sum(tool.most_under_way for tool in tools)
    return VirtualRollout(Done(seconds, engine.work, calls), trees, tuple(whole), tuple(waits), issued, most)


def run_barrier(batch: Batch, supplements_branch: bool) -> Done:
    """The released loop on the same batch."""
    script = batch.script
    engine = CapacityEngine(H200_7B, _PAGE, script.turn, script.tokenizer)
    rule = Rounds(N, M, COIN, script.workload.max_tokens, supplements_branch)
    loop = BarrierLoop(engine, script.renderer, batch.tools(), batch.problems, rule)

    async def run() -> None:
        try:
            await loop.run()
        finally:
            await engine.close()

    _, seconds = run_virtual(run())
    if loop.leaves != N * len(batch.problems):
        raise ValueError("the barrier loop did not grow n trajectories for each problem")
    return Done(seconds, engine.work, loop.calls)
