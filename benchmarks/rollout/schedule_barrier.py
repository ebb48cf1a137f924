"""The other side of the schedule rows: the barrier loop of ARPO's released rollout, on the same engine.

A round generates for all trajectories, waits for the last one, runs all tools in a pool of threads, waits for the
last one, and branches. A problem without an active trajectory gets one supplementary root a round. Whatever of
that loop is not its schedule is left out in its favour: its entropies are free, and a call that hung is made again
with a fresh latency. Node paths are ramify's, so the same place of a tree has the same turn on both sides.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.rollout.schedule_engine import CapacityEngine
from benchmarks.rollout.schedule_tools import TIMEOUTS, TimedSession, TimedTool
from ramify.chat.tag_renderer import TagRenderer
from ramify.core.draws import stream, uniform
from ramify.core.messages import Calls, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.records import Request
from ramify.core.tree import NodePath, TreeKey, node_id
from ramify.rollout.turn import turn_seed

THREADS = 64
ATTEMPTS = 3
_RUN_SEED = 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the loop is told; `coin` is the probability of a branch, at most one a tool result.

    `supplements_branch` is as in the release; without it both sides of a row grow the same trees.
    """

    n: int
    m: int
    coin: float
    max_tokens: int
    supplements_branch: bool


@dataclass(frozen=True, slots=True)
class _Walk:
    """An active trajectory.

    `key` is its place in the order in which a round spends the budget, `path` that of the turn that comes next.
    """

    slot: int
    key: tuple[int, ...]
    path: NodePath
    context: tuple[int, ...]
    spent: int = 0
    depth: int = 0


class BarrierLoop:
    """Grows the trees of a batch.

    Attributes:
        leaves: Trajectories that have ended.
        calls: Tool calls that the trajectories made.
        rounds: So far.
    """

    def __init__(
        self,
        engine: CapacityEngine,
        renderer: TagRenderer,
        tools: Sequence[TimedTool],
        problems: Sequence[Problem],
        rule: Rounds,
    ) -> None:
        self.leaves = self.calls = self.rounds = 0
        self._engine = engine
        self._renderer = renderer
        self._specs = tuple(tool.spec for tool in tools)
        self._tools = {tool.spec.name: tool for tool in tools}
        self._problems = problems
        self._rule = rule
        self._roots = [0] * len(problems)
        self._started = [0] * len(problems)
        self._threads = asyncio.Semaphore(THREADS)

    async def run(self) -> None:
        """Rounds until every problem has its n trajectories."""
        active = [self._root(slot) for _ in range(self._rule.m) for slot in range(len(self._problems))]
        while active:
            self.rounds += 1
            called = [pair for pair in await asyncio.gather(*map(self._generate, active)) if pair is not None]
            answered = await asyncio.gather(*(self._use_tool(walk, call) for walk, call in called))
            active = self._branched([walk for walk in answered if walk is not None])
            active += self._supplements({walk.slot for walk in active})

    def _root(self, slot: int) -> _Walk:
        root = self._roots[slot]
        self._roots[slot] += 1
        self._started[slot] += 1
        return _Walk(slot, (root,), (root,), self._renderer.render_prompt(self._problems[slot], self._specs))

    async def _generate(self, walk: _Walk) -> tuple[_Walk, ToolCall] | None:
        """The trajectory with its next turn, and the call that it makes; None: it has ended."""
        room = self._rule.max_tokens - walk.spent
        seed = turn_seed(_RUN_SEED, TreeKey(0, walk.slot), self._problems[walk.slot].id, walk.path)
        done = await self._engine.generate(Request(walk.context, seed, room))
        parsed = self._renderer.parse(self._renderer.decode(done.token_ids), self._specs)
        if not isinstance(parsed, Calls):
            self.leaves += 1
            return None
        wrote = replace(walk, context=walk.context + done.token_ids, spent=walk.spent + len(done.token_ids))
        return wrote, replace(parsed.calls[0], id=f"{node_id(walk.path)}:0")

    async def _use_tool(self, walk: _Walk, call: ToolCall) -> _Walk | None:
        """The trajectory with the tool's result; None: that was more than its budget of tokens."""
        self.calls += 1
        session = TimedSession(self._tools[call.name], self._problems[walk.slot])
        async with self._threads:
            result = await self._insist(session, call)
        added = self._renderer.render_results((result,), self._specs)
        if walk.spent + len(added) >= self._rule.max_tokens:
            self.leaves += 1
            return None
        return replace(
            walk,
            path=(*walk.path, 0, 0),
            context=walk.context + added,
            spent=walk.spent + len(added),
            depth=walk.depth + 1,
        )

    async def _insist(self, session: TimedSession, call: ToolCall) -> ToolResult:
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout(TIMEOUTS[call.name]):
                    return await session.call(call)
            except TimeoutError:
                continue
        return ToolResult(call.id, ToolStatus.TIMEOUT, "no answer")

    def _branched(self, walks: list[_Walk]) -> list[_Walk]:
        children = []
        for walk in sorted(walks, key=lambda walk: (walk.slot, walk.key)):
            if self._started[walk.slot] < self._rule.n and self._wants(walk):
                self._started[walk.slot] += 1
                path = (*walk.path[:-1], 1)
                children.append(replace(walk, key=(*walk.key, walk.depth, 1), path=path))
        return walks + children

    def _wants(self, walk: _Walk) -> bool:
        if walk.key[0] >= self._rule.m and not self._rule.supplements_branch:
            return False
        problem, parent_path = self._problems[walk.slot].id, walk.path[:-1]
        name = stream(_RUN_SEED, 0, walk.slot, 0, problem, parent_path, "branch")
        return uniform(name) < self._rule.coin

    def _supplements(self, active: set[int]) -> list[_Walk]:
        starved = [slot for slot in range(len(self._problems)) if slot not in active]
        return [self._root(slot) for slot in starved if self._started[slot] < self._rule.n]
