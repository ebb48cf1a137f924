"""Growing the trees of a step, concurrently, while their trajectories fit into the engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ramify.core.messages import Problem
from ramify.core.tree import Tree
from ramify.rollout.plan import TreeRequest, step_requests
from ramify.rollout.settings import AgentParts
from ramify.rollout.slot_gate import SlotGate
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

    `then` gets each tree when it is complete and holds no slot any more, with the seconds from its first slot to its last
    token. It may wait for a judge or a disk. Returns its results in the order of `requests`. `limits.step_seconds` counts from
    this call.

    Raises:
        EngineError: The engine broke its contract.
        ConfigError: The branching rule's numbers do not fit n or each other.
    """
    gate, loop = SlotGate(parts.slots), asyncio.get_running_loop()
    limit = parts.limits.step_seconds
    deadline = None if limit is None else loop.time() + limit

    async def grow(order: int, request: TreeRequest) -> Value:
        agent = parts.for_problem(request.problem)
        async with gate.tree(order, max(1, parts.brancher.first_roots(parts.limits.n))) as take_slot:
            began = loop.time()
            tree = await TreeGrower(agent, request, deadline, take_slot).grow()
            seconds = loop.time() - began
        return await then(tree, seconds)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(grow(*numbered)) for numbered in enumerate(requests)]
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from failures
    return tuple(task.result() for task in tasks)


def first_failure(failure: BaseException) -> BaseException:
    """Return the first cause of a failure; the other trajectories were only cancelled."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
