"""The tools of the schedule rows: answers and latencies of the workload, on the virtual clock."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus

DEADLINE = 10.0
"""Seconds that one call may take in a rollout of ours."""

HEDGE = 5.0
"""Seconds after which a search of ours is issued once more. A program is not: it may have effects."""


TIMEOUTS = {"search": 60.0, "python": 120.0}
"""Seconds that one call may take in the released scripts, and by default in our recipes."""


def _spec(name: str, argument: str, deadline: float, hedge: float | None) -> ToolSpec:
    parameters = {"type": "object", "required": [argument]}
    return ToolSpec(name, name, parameters, forks=True, timeout_seconds=deadline, hedge_seconds=hedge)


SPECS = (_spec("search", "query", DEADLINE, HEDGE), _spec("python", "code", DEADLINE, None))
PATIENT_SPECS = (
    _spec("search", "query", TIMEOUTS["search"], None),
    _spec("python", "code", TIMEOUTS["python"], None),
)

Answer = Callable[[str, Problem, str], str]
"""(tool, problem, id of the call) -> text."""

Seconds = Callable[[str, Problem, str, int], float | None]
"""(tool, problem, id of the call, how often it was issued before) -> seconds; None: it never answers."""


@dataclass(slots=True)
class TimedTool:
    """Implements `core.protocols.Tool`; counts what was asked of it."""

    spec: ToolSpec
    answer: Answer
    seconds: Seconds
    issued: Counter[tuple[str, str]] = field(default_factory=Counter)
    under_way: int = 0
    most_under_way: int = 0

    async def open(self, problem: Problem) -> "TimedSession":
        """A session knows its problem and has no other state."""
        return TimedSession(self, problem)


@dataclass(frozen=True, slots=True)
class TimedSession:
    """Implements `core.protocols.ToolSession`."""

    tool: TimedTool
    problem: Problem

    async def call(self, call: ToolCall) -> ToolResult:
        """The answer, after the latency of this issue of the call."""
        tool, key = self.tool, (self.problem.id, call.id)
        seconds = tool.seconds(tool.spec.name, self.problem, call.id, tool.issued[key])
        tool.issued[key] += 1
        tool.under_way += 1
        tool.most_under_way = max(tool.most_under_way, tool.under_way)
        try:
            if seconds is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(seconds)
        finally:
            tool.under_way -= 1
        return ToolResult(call.id, ToolStatus.OK, tool.answer(tool.spec.name, self.problem, call.id))

    async def fork(self) -> "TimedSession":
        """Nothing is copied."""
        return self

    async def close(self) -> None:
        """Nothing is held."""
