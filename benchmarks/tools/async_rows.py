"""Row 5b: many calls that wait at one time, through the agent loop's own path of a call."""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness.interleave import MIN_RUNS, interleave, medians
from benchmarks.harness.rows import Row
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Problem, ToolCall, ToolStatus
from ramify.core.tree import TreeKey
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.obs.metrics import TimingLog
from ramify.rollout.calls import run_calls
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.settings import AgentParts
from ramify.rollout.tool_set import ToolSet
from ramify.tools.functions import tool_from

_CALLS = 1000
_SECONDS = 1.0
_THREADS = 64
_MOST_WALL_SECONDS = 1.15
_MOST_CPU_SECONDS = 100e-6


async def wait(seconds: float) -> str:
    """Waits, as a tool does that asks a service.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "done"


def concurrent_calls() -> Sequence[Row]:
    """Row 5b: the wall time of all calls, and the CPU time of this process for each of them."""
    agent = _agent()
    cpu: list[float] = []

    def ours() -> float:
        wall, busy = asyncio.run(_timed_calls(agent))
        cpu.append(busy / _CALLS)
        return wall

    walls = interleave({"ours": ours, "peer": _threads})
    recorded = cpu[-len(walls["ours"]) :]
    middle = medians(walls)
    each = statistics.median(recorded)
    return [
        Row(
            "5b",
            f"s for {_CALLS} concurrent {_SECONDS:g} s calls of an asynchronous stand-in tool; the ratio is ours",
            middle["ours"],
            middle["peer"],
            middle["ours"],
            f"at most {_MOST_WALL_SECONDS} s, and at most {_MOST_CPU_SECONDS * 1e6:g} us of CPU for each call",
            met=middle["ours"] <= _MOST_WALL_SECONDS and each <= _MOST_CPU_SECONDS,
            runs={**walls, "cpu_us_per_call": [1e6 * seconds for seconds in recorded]},
            settings={
                "calls": _CALLS,
                "call_seconds": _SECONDS,
                "cpu_us_per_call": round(1e6 * each, 1),
                "cpu": "of the whole process from the first call to the last answer; garbage is collected before each run",
                "path": "ramify.rollout.calls.run_calls, one tool made by ramify.tools.functions.tool_from",
                "peer": f"a pool of {_THREADS} threads that sleep",
                "runs": MIN_RUNS,
            },
        )
    ]


def _agent() -> AgentParts:
    """An agent with one tool; its engine is never asked."""
    tool = tool_from(wait)
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_tokenizer(Path(folder), seed=0)
        tokenizer = ChatTokenizer(Path(folder))
    return AgentParts(
        engine=ScriptedEngine(tokenizer, lambda _context, _seed: ScriptedTurn("<answer> 1 </answer>")),
        renderer=TagRenderer(tokenizer),
        environment=ToolSet({"wait": tool}),
        brancher=FlatBrancher(probe_tokens=1),
        limits=RolloutLimits(n=1, max_tokens=100, max_calls=1),
        events=TimingLog(),
        run_seed=0,
    )


async def _timed_calls(agent: AgentParts) -> tuple[float, float]:
    """Wall and CPU seconds from the first call to the last answer."""
    session = await agent.environment.open(Problem("p", (), ()), 0)

    async def call_once(slot: int) -> ToolStatus:
        call = ToolCall(f"{slot}:0", "wait", {"seconds": _SECONDS})
        (result,) = await run_calls(agent, TreeKey(0, slot), "0", (call,), session)
        return result.status

    gc.collect()  # the garbage of the run before is not this one's
    started, busy = time.perf_counter(), time.process_time()
    statuses = await asyncio.gather(*map(call_once, range(_CALLS)))
    spent = time.perf_counter() - started, time.process_time() - busy
    if set(statuses) != {ToolStatus.OK}:
        raise ValueError(f"expected every call to be answered, got {set(statuses)}")
    return spent


def _threads() -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(time.sleep, [_SECONDS] * _CALLS))
    return time.perf_counter() - started


ROWS = {"5b": concurrent_calls}
