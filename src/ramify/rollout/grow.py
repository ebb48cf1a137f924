"""Growing the trees of a step, concurrently, while their trajectories fit into the engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from ramify.core.messages import Problem
from ramify.core.tree import Tree
from ramify.rollout.plan import TreeRequest, step_requests
from ramify.rollout.settings import AgentParts
from ramify.rollout.tree_grower import TreeGrower

Value = TypeVar("Value")


async def grow_trees(parts: AgentParts, problems: Sequence[Problem], step: int) -> tuple[Tree, ...]:
    """Grow one tree for each problem of a step, concurrently; returns them in the order of the problems.

    Raises:
        EngineError: The engine broke its contract.
        ConfigError: The branching rule's numbers do not fit n or each other.
    """

    async def whole(tree: Tree, _: float) -> Tree:
        return tree

    return await grow_requests(parts, step_requests(problems, step), whole)


async def grow_requests(
    parts: AgentParts, requests: Sequence[TreeRequest], then: Callable[[Tree, float], Awaitable[Value]]
) -> tuple[Value, ...]:
    """Grow trees concurrently, in this order where the engine has too few slots for all.

    `then` gets each tree when it is complete and holds no slot any more, with the seconds from its first request to its last
    token. It may wait for a judge or a disk. Returns its results in the order of `requests`. `limits.step_seconds` counts from
    this call.

    Raises:
        EngineError: The engine broke its contract.
        ConfigError: The branching rule's numbers do not fit n or each other.
    """
    gate, loop = SlotGate(parts.slots), asyncio.get_running_loop()
    limit = parts.limits.step_seconds
    deadline = None if limit is None else loop.time() + limit

    async def grow(request: TreeRequest) -> Value:
        async with gate.tree(parts.limits.n) as trajectory_ended:
            began = loop.time()
            agent = parts.for_problem(request.problem)
            tree = await TreeGrower(agent, request, deadline, trajectory_ended).grow()
            seconds = loop.time() - began
        return await then(tree, seconds)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(grow(request)) for request in requests]
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from failures
    return tuple(task.result() for task in tasks)


def first_failure(failure: BaseException) -> BaseException:
    """Return the first cause of a failure; the other trajectories were only cancelled."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


class SlotGate:
    """Admits trees, first come first served, while their trajectories fit into the engine's slots.

    A tree holds one slot for each trajectory that has not ended; a tree that is larger than the engine runs alone.
    """

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self._in_use = 0
        self._freed = asyncio.Event()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def tree(self, trajectories: int) -> AsyncIterator[Callable[[], None]]:
        """Hold `trajectories` slots. The callback returns one of them, the end of the block returns the rest."""
        async with self._turn:
            while not self._fits(trajectories):
                self._freed.clear()
                await self._freed.wait()
            self._in_use += trajectories
        mine = trajectories

        def give_back() -> None:
            nonlocal mine
            mine -= 1
            self._release(1)

        try:
            yield give_back
        finally:
            self._release(mine)

    def _fits(self, trajectories: int) -> bool:
        return self._slots is None or not self._in_use or self._in_use + trajectories <= self._slots

    def _release(self, count: int) -> None:
        self._in_use -= count
        self._freed.set()
