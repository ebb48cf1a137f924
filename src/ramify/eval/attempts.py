"""Growing attempts: trees of one trajectory each, so that nothing is shared and every end can be written at once."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramify.core.messages import Problem
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward
from ramify.core.tree import Tree, TreeKey
from ramify.rewards.tree_rewards import score_tree
from ramify.rollout.admission import SlotGate
from ramify.rollout.grow import TreeGrower, first_failure
from ramify.rollout.settings import AgentParts


@dataclass(frozen=True, slots=True)
class Place:
    """An attempt that is to be made: the problem, its place in the data, and the number of the attempt.

    The draws of an attempt belong to its place, so that it is the same attempt in whatever company it is made.
    """

    problem: Problem
    slot: int
    attempt: int

    @property
    def key(self) -> tuple[str, int]:
        """Of its line in the results: id of the problem, number of the attempt."""
        return self.problem.id, self.attempt


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that has ended, scored; `seconds` of wall time from its start, its score left out."""

    tree: Tree
    reward: Reward
    seconds: float


async def make_attempts(
    agent: AgentParts, reward: RewardFn, places: Sequence[Place], on_end: Callable[[Ended], None]
) -> None:
    """Make all attempts side by side, as many at a time as the engine has slots; `on_end` gets each at its end.

    Args:
        agent: With `limits.n` = 1 and a rule that never branches.
        reward: Scores them.
        places: Started in this order.
        on_end: Called in the order in which attempts end, one at a time, in a thread: it may write files.

    Raises:
        ValueError: The agent is to make more than one trajectory of a tree.
        DataError: A reward is no number.
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
        (given,) = await score_tree(reward, tree)
        async with ending:
            await asyncio.to_thread(on_end, Ended(tree, given, seconds))

    try:
        async with asyncio.TaskGroup() as group:
            for place in places:
                group.create_task(make(place))
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from failures
