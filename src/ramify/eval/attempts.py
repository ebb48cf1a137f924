"""Growing attempts: each is a tree of one trajectory, so attempts are independent and each is saved when it ends."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramify.core.messages import Problem
from ramify.core.protocols import RewardFn
from ramify.core.records import ScoredTree
from ramify.core.tree import TreeKey
from ramify.rewards.trajectory_rewards import score_tree
from ramify.rollout.grow import TreeGrower, first_failure
from ramify.rollout.settings import AgentParts
from ramify.rollout.waits import SlotGate


@dataclass(frozen=True, slots=True)
class Place:
    """An attempt to make: the problem, its index in the data, and the number of the attempt.

    The random draws of an attempt depend on its place only, not on the other attempts that run at the same time.
    """

    problem: Problem
    slot: int
    attempt: int

    @property
    def key(self) -> tuple[str, int]:
        """The key of its line in the results: id of the problem, number of the attempt."""
        return self.problem.id, self.attempt


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished attempt; `seconds` is its wall time without scoring."""

    scored: ScoredTree
    seconds: float


async def make_attempts(
    agent: AgentParts, reward: RewardFn, places: Sequence[Place], on_end: Callable[[Ended], None]
) -> None:
    """Make all attempts concurrently, as many at a time as the engine has slots; `on_end` gets each when it ends.

    Args:
        agent: With `limits.n` = 1 and a rule that never branches.
        reward: Scores the attempts.
        places: The attempts, started in this order.
        on_end: Called in the order in which attempts end, one at a time and in a thread, so it may write files.

    Raises:
        ValueError: `limits.n` is not 1.
        DataError: A reward is not a finite number.
        EngineError: The engine broke its contract, or a prompt does not fit its context.
    """
    if agent.limits.n != 1:
        raise ValueError(f"an attempt is one trajectory, not {agent.limits.n}")
    gate, ending = SlotGate(agent.slots), asyncio.Lock()
    loop = asyncio.get_running_loop()
    limit = agent.limits.step_seconds
    ends = None if limit is None else loop.time() + limit

    async def make(place: Place) -> None:
        async with gate.tree(1) as trajectory_ended:
            began = loop.time()
            key = TreeKey(step=place.attempt, slot=place.slot)
            tree = await TreeGrower(agent, place.problem, key, ends, trajectory_ended).grow()
            seconds = loop.time() - began
        scored = await score_tree(reward, tree)
        async with ending:
            await asyncio.to_thread(on_end, Ended(scored, seconds))

    try:
        async with asyncio.TaskGroup() as group:
            for place in places:
                group.create_task(make(place))
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from failures
