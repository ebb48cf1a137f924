"""Problems in, scored trees out: the first half of a training step, an evaluation, and all of `ramify rollout`."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ramify.core.closing import close_all
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree
from ramify.obs.console import Phase
from ramify.obs.metrics import TimingLog
from ramify.rollout.grow import grow_requests
from ramify.rollout.plan import TreeRequest
from ramify.rollout.settings import AgentParts
from ramify.sampler.scoring import Scoring
from ramify.sampler.task import Task

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sampler:
    """An agent with its task and its reward. It never touches weights."""

    task: Task
    agent: AgentParts
    timing: TimingLog
    scoring: Scoring

    async def grow(self, planned: Sequence[TreeRequest], phase: Phase) -> tuple[ScoredTree, ...]:
        """Grow trees and score their leaves; returns them in the order of `planned`.

        `phase` shows what the rollout is waiting for.

        Raises:
            DataError: Problem after problem failed, and none worked.
            EngineError: The engine broke its contract.
        """
        left = len(planned)

        async def keep(scored: ScoredTree, seconds: float) -> ScoredTree:
            nonlocal left
            del seconds
            left -= 1
            return scored

        return await self.grow_each(
            planned,
            keep,
            lambda waits: phase.advance(0, waiting=f"{left} of {len(planned)} trees: {waits}"),
        )

    async def grow_each(
        self,
        planned: Sequence[TreeRequest],
        then: Callable[[ScoredTree, float], Awaitable[Value]],
        show_waits: Callable[[str], None],
    ) -> tuple[Value, ...]:
        """As `grow`, but `then` gets each tree, and the seconds that it took, as soon as it is scored."""

        async def score(tree: Tree, seconds: float) -> Value:
            return await then(await self.scoring.score(tree), seconds)

        async with self.agent.waits.shown(show_waits):
            return await grow_requests(self.agent, planned, score)

    async def close(self) -> None:
        """Stop the engine, the tools and the judge."""
        await close_all((self.agent.engine, self.task))
