"""Problems in, scored trees out: the first half of a training step, an evaluation, and all of `ramify rollout`.

A problem that cannot be scored has failed; only if no problem ever works, the run ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ramify.core.closing import Closable, close_all
from ramify.core.errors import ContentError, DataError, RunInterruptedError
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import StopReason, Tree
from ramify.obs.console import Phase
from ramify.obs.metrics import TimingLog
from ramify.rewards.trajectory_rewards import score_tree
from ramify.rollout.grow import grow_requests
from ramify.rollout.plan import TreeRequest, content_errors, report_failed_problem
from ramify.rollout.settings import AgentParts
from ramify.runtime.agent_loop import AgentLoop, StopOnSignal, agent_loop
from ramify.sampler.task import Task

FAILURES_TO_STOP = 8
"""After so many failed problems and none that worked, the mistake is not in one problem."""


@dataclass(slots=True)
class Scoring:
    """Scores the trees of a session.

    Attributes:
        reward: The reward function.
        timing: Gets an event for each problem that failed, and knows the reasons.
        num_worked: Number of problems that did not fail.
    """

    reward: RewardFn
    timing: TimingLog
    num_worked: int = 0
    stops_early: bool = True

    async def score(self, tree: Tree) -> ScoredTree:
        """Return the tree with its rewards; if it has failed, or cannot be scored, with rewards of 0 that do not count.

        Raises:
            DataError: `FAILURES_TO_STOP` problems failed, none worked, and it `stops_early`.
        """
        if not tree.has_failed:
            try:
                with content_errors("the reward"):
                    scored = await score_tree(self.reward, tree)
            except ContentError as error:
                report_failed_problem(self.timing, tree.key, tree.problem, str(error))
                # Without a reward no trajectory says anything about the policy.
                tree = replace(
                    tree,
                    nodes=tuple(
                        node if node.stop is None else replace(node, stop=StopReason.FAILED)
                        for node in tree.nodes
                    ),
                )
            else:
                self.num_worked += 1
                return scored
        if self.stops_early and len(self.timing.failed_problems) >= FAILURES_TO_STOP:
            self.require_success()
        return ScoredTree(tree, (Reward(0.0, {}, counts=False),) * len(tree.trajectories))

    def require_success(self) -> None:
        """Raise DataError if problems failed and none worked."""
        failed = self.timing.failed_problems
        if failed and not self.num_worked:
            raise DataError(f"none of {len(failed)} problems worked; the first: {failed[0]}")


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
            with self.agent.waits.on("reward"):
                scored = await self.scoring.score(tree)
            return await then(scored, seconds)

        self.timing.start(asyncio.get_running_loop().time())
        async with self.agent.waits.shown(show_waits):
            return await grow_requests(self.agent, planned, score)

    async def close(self) -> None:
        """Stop the engine, the tools and the judge."""
        await close_all((self.agent.engine, self.task))


Opened = TypeVar("Opened", bound=Closable)


@dataclass(frozen=True, slots=True)
class SamplingSession(Generic[Opened]):
    """An event loop that serves an open sampler, and the signals that stop what runs in it."""

    loop: AgentLoop
    stop: StopOnSignal
    sampler: Opened


@contextmanager
def closed_on_error(opened: Closable) -> Iterator[None]:
    """Close what was opened, such as an engine with its servers, if the block fails: another part cannot be built."""
    try:
        yield
    except BaseException:
        with agent_loop() as loop:
            loop.run(opened.close())
        raise


@contextmanager
def sampling(
    task: Closable, open_sampler: Callable[[], Opened], if_stopped: str = ""
) -> Iterator[SamplingSession[Opened]]:
    """Open a sampler, serve it while the block runs, and close it.

    Args:
        task: What the sampler grows trees for; it is closed with the sampler, or alone where the sampler cannot be opened.
        open_sampler: Makes the sampler, which closes its task.
        if_stopped: State in which a stopped run is left, for the message; with none, that of the block.

    Raises:
        RunInterruptedError: Ctrl-C or SIGTERM.
    """
    # Until the sampler is open, the task is all there is to close.
    opened = task
    try:
        with agent_loop() as loop, StopOnSignal(loop) as stop:
            try:
                sampler = open_sampler()
                opened = sampler
                loop.freeze_objects()
                yield SamplingSession(loop, stop, sampler)
            finally:
                loop.run(opened.close())
    except RunInterruptedError as stopped:
        if not if_stopped:
            raise
        raise RunInterruptedError(stopped.number, if_stopped) from None
