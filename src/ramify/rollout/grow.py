"""Growing the trees of a step, concurrently, while their trajectories fit into the engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ramify.core.messages import Problem
from ramify.core.tree import Tree
from ramify.rollout.plan import Planned, planned_step
from ramify.rollout.settings import AgentParts
from ramify.rollout.tree_grower import TreeGrower
from ramify.rollout.waits import SlotGate

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Grown:
    """A complete tree, and the wall time from its first request to its last token, in seconds."""

    tree: Tree
    seconds: float


async def grow_trees(parts: AgentParts, problems: Sequence[Problem], step: int) -> tuple[Tree, ...]:
    """Grow one tree for each problem of a step, concurrently; returns them in the order of the problems.

    Raises:
        EngineError: The engine broke its contract.
        ConfigError: The branching rule's numbers do not fit n or each other.
    """

    async def whole(grown: Grown) -> Tree:
        return grown.tree

    return await grow_planned(parts, planned_step(problems, step), whole)


async def grow_planned(
    parts: AgentParts, planned: Sequence[Planned], then: Callable[[Grown], Awaitable[Value]]
) -> tuple[Value, ...]:
    """Grow trees concurrently, in this order where the engine has too few slots for all.

    `then` gets each tree when it is complete and holds no slot any more, and may wait for a judge or a disk meanwhile.
    Returns what it returned, in the order of `planned`. `limits.step_seconds` counts from this call.

    Raises:
        EngineError: The engine broke its contract.
        ConfigError: The branching rule's numbers do not fit n or each other.
    """
    gate, loop = SlotGate(parts.slots), asyncio.get_running_loop()
    seconds = parts.limits.step_seconds
    ends = None if seconds is None else loop.time() + seconds

    async def grow(one: Planned) -> Value:
        async with gate.tree(parts.limits.n) as trajectory_ended:
            began = loop.time()
            agent = parts.for_problem(one.problem)
            tree = await TreeGrower(agent, one, ends, trajectory_ended).grow()
            grown = Grown(tree, loop.time() - began)
        return await then(grown)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(grow(one)) for one in planned]
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from failures
    return tuple(task.result() for task in tasks)


def first_failure(failure: BaseException) -> BaseException:
    """The first cause of a failure; the other trajectories were only cancelled."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
