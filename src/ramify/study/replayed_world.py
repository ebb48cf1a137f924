"""Worlds in which other trainers' conversations go on: tools or an environment of a recipe, or the recorded results themselves."""

import itertools
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from ramify.core.errors import ContentError
from ramify.core.messages import Final, Message, Observation, ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import Environment, EnvironmentSession, Json
from ramify.core.tree import Node, Source, StopReason, Trajectory, Tree
from ramify.net.secrets import redact
from ramify.rollout.calls import Failure, checked_result, not_run, within
from ramify.rollout.sessions import checked_reply, checked_score
from ramify.study.conversations import ForeignRun

Value = TypeVar("Value")

_SECONDS = 60.0
"""Deadline of an environment that names none."""
WORLD_FAILED = "the environment failed"
_MAYBE_ANSWERED = "an answer that somebody may have replied to"


class UnknownOutcomeError(Exception):
    """A trajectory whose reward cannot be known; the message says why, in words that are the same for all such."""


class WorldSession(Protocol):
    """A world on one trajectory. Its methods raise `UnknownOutcomeError`."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the result of a call."""

    async def step(self, node: Node) -> Observation | None:
        """Return the reply to a turn without a call; None if nothing here replies to any."""

    async def ended(self, trajectory: Trajectory) -> float:
        """Return what the world pays for a trajectory at its end."""

    async def scored_end(self, recorded: Trajectory) -> Trajectory:
        """Return a recorded trajectory with what the world pays for it and its end."""

    async def close(self) -> None:
        """Free the state."""


class World(Protocol):
    """The source of the results of calls."""

    def tools(self, problem: int) -> Sequence[Mapping[str, Json]]:
        """Return the tools of a problem, by its place among the trees, as the endpoint gets them."""

    async def open(self, problem: int) -> WorldSession:
        """Begin a trajectory of a problem; raises `UnknownOutcomeError`."""


async def replay(session: WorldSession, above: Sequence[Node]) -> list[Node]:
    """Make the turns of a path again; returns its nodes with what the world pays for each turn.

    Raises:
        UnknownOutcomeError: A reply differs from the record.
    """
    nodes = []
    for node, reply in itertools.pairwise(above):
        if node.source is Source.POLICY and not node.calls:
            observation = await session.step(node)
            if observation is not None:
                if _texts(observation.messages) != _texts(reply.messages) or observation.ends:
                    raise UnknownOutcomeError(
                        "a turn on the way that got another reply than the recorded one"
                    )
                node = replace(node, reward=observation.reward)
            nodes.append(node)
        else:
            results = await _called_again(session, node, reply.results)
            if any(result.ends for result in results):
                raise UnknownOutcomeError("a call on the way that ends the trajectory here")
            nodes.append(paid(node, results))
    return [*nodes, above[-1]]


async def called(session: WorldSession, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
    """Return the results of a turn's calls; those after one that ends the trajectory are not run."""
    results: list[ToolResult] = []
    for call in calls:
        if any(result.ends for result in results):
            results.append(not_run(call))
        else:
            results.append(await session.call(call))
    return tuple(results)


async def _called_again(
    session: WorldSession, node: Node, recorded: Sequence[ToolResult]
) -> tuple[ToolResult, ...]:
    """Make the calls of a turn again, up to one that ends the trajectory: what was recorded behind it is not compared."""
    results = await called(session, node.calls)
    num_run = next((number for number, result in enumerate(results, 1) if result.ends), len(results))
    if any(
        redact(result.text) != redact(before.text)
        for result, before in zip(results[:num_run], recorded, strict=False)
    ):
        raise UnknownOutcomeError("a call on the way that gave another result than the recorded one")
    return results


def _texts(messages: Sequence[Message]) -> list[str]:
    return [redact(message.text) for message in messages]


def paid(node: Node, results: Sequence[ToolResult]) -> Node:
    """Return a turn with what the world paid for its calls."""
    return replace(node, reward=_sum(result.reward for result in results))


def paid_at_end(trajectory: Trajectory, reward: float) -> Trajectory:
    """Return a trajectory with what the world paid at its end."""
    leaf = replace(trajectory.leaf, reward=_sum((trajectory.leaf.reward, reward)))
    return replace(trajectory, nodes=(*trajectory.nodes[:-1], leaf))


def _sum(rewards: Iterable[float]) -> float:
    total = sum(rewards)
    if not math.isfinite(total):
        raise UnknownOutcomeError(f"{WORLD_FAILED}: it paid {total}")
    return total


@dataclass(frozen=True, slots=True)
class ReplayedWorld:
    """The recorded results of a problem's conversations: the same call gets the same result, and no other call gets one.

    A call that was recorded with several results gets the first. The state of a world is not known, so this suits tools
    whose results depend on the call alone.
    """

    run: ForeignRun

    def tools(self, problem: int) -> Sequence[Mapping[str, Json]]:
        """Return the tools that the first conversation was offered."""
        listed = json.loads(self.run.tools[problem] or "[]")
        return [{"type": "function", "function": tool} for tool in listed]

    async def open(self, problem: int) -> "ReplayedSession":
        """Return the results of the problem's conversations."""
        tree = self.run.trees[problem].tree
        return ReplayedSession(recorded_results(tree), has_replies=any(node.messages for node in tree.nodes))


def recorded_results(tree: Tree) -> dict[str, ToolResult]:
    """Return the first result of each call in the conversations of a problem, by name and arguments.

    Those of a last turn are left out: nobody knows how a conversation goes on behind them.
    """
    results: dict[str, ToolResult] = {}
    for trajectory in tree.trajectories:
        exchanges = trajectory.exchanges
        for call, result in exchanges[: len(exchanges) - len(trajectory.leaf.results)]:
            results.setdefault(_name(call), result)
    return results


def _name(call: ToolCall) -> str:
    # A malformed call has no arguments either; it is not the call without any.
    return json.dumps([call.name, dict(call.arguments), call.malformed], sort_keys=True)


@dataclass(frozen=True, slots=True)
class ReplayedSession:
    """Recorded results, by call; `has_replies`: a user answered turns that called no tool."""

    results: Mapping[str, ToolResult]
    has_replies: bool

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the recorded result."""
        result = self.results.get(_name(call))
        if result is None:
            raise UnknownOutcomeError("a call that was never recorded")
        return ToolResult(call.id, result.status, result.text)

    async def step(self, node: Node) -> Observation | None:  # noqa: ARG002 - a record replies to nothing
        """Return None."""
        return None

    async def ended(self, trajectory: Trajectory) -> float:  # noqa: ARG002 - a record pays nothing
        """Return 0; of a problem whose user replies, an answer may not be the end."""
        if self.has_replies:
            raise UnknownOutcomeError(_MAYBE_ANSWERED)
        return 0.0

    async def scored_end(self, recorded: Trajectory) -> Trajectory:
        """Return it as it is."""
        return recorded

    async def close(self) -> None:
        """Do nothing: it is a record."""


@dataclass(frozen=True, slots=True)
class LiveWorld:
    """The tools or the environment of a recipe; `can_end`: an environment may end a trajectory, or pay for calls."""

    environment: Environment
    trees: Sequence[Tree]
    can_end: bool

    def tools(self, problem: int) -> Sequence[Mapping[str, Json]]:  # noqa: ARG002 - all have the same
        """Return the environment's tools."""
        return [
            {
                "type": "function",
                "function": {"name": s.name, "description": s.description, "parameters": dict(s.parameters)},
            }
            for s in self.environment.tools.values()
        ]

    async def open(self, problem: int) -> "LiveSession":
        """Open the environment."""
        tree = self.trees[problem]
        opened = await within(
            self.environment.seconds or _SECONDS,
            lambda: self.environment.open(tree.problem, problem),
        )
        if isinstance(opened, Failure):
            raise UnknownOutcomeError(f"{WORLD_FAILED} and could not be opened: {opened.reason}"[:200])
        has_replies = any(node.messages for node in tree.nodes)
        return LiveSession(self.environment, opened, has_replies, self.can_end)


@dataclass(slots=True)
class LiveSession:
    """A session of an environment; a call that fails or takes too long is a result.

    `has_replies`: in the record somebody answered turns that called no tool.
    """

    environment: Environment
    session: EnvironmentSession
    has_replies: bool
    can_end: bool
    _steps: int = 0

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the call."""
        spec = self.session.tools.get(call.name)
        if call.malformed is not None:
            return ToolResult(call.id, ToolStatus.MALFORMED, call.malformed)
        if spec is None:
            return ToolResult(call.id, ToolStatus.UNKNOWN_TOOL, f"There is no tool {call.name}.")
        answer = await within(spec.timeout_seconds, partial(checked_result, self.session, call))
        if isinstance(answer, Failure):
            if isinstance(answer.raised, ContentError):
                raise UnknownOutcomeError("a call that the environment refuses")
            answer = ToolResult(call.id, ToolStatus.ERROR, answer.reason)
        return replace(answer, text=redact(answer.text))

    async def step(self, node: Node) -> Observation | None:
        """Return the environment's reply; None if it never replies, and no message once it has replied as often as it may."""
        most = self.environment.max_observations
        if not most:
            return None
        if self._steps >= most:
            return Observation()
        self._steps += 1
        return await self._within(partial(checked_reply, self.session, node.turn or Final("")))

    async def ended(self, trajectory: Trajectory) -> float:
        """Return what the environment pays for the whole."""
        if self.has_replies and not self.environment.max_observations:
            raise UnknownOutcomeError(_MAYBE_ANSWERED)
        return await self._score(trajectory)

    async def scored_end(self, recorded: Trajectory) -> Trajectory:
        """Make its turns again, the last one's calls too where their results are recorded, and end it."""
        *above, leaf = await replay(self, recorded.nodes)
        if leaf.calls:
            leaf = await self._ended_by_calls(leaf)
        elif (observation := await self.step(leaf)) is not None:
            if observation.messages and not observation.ends:
                raise UnknownOutcomeError("a recorded end that the environment replied to")
            leaf = replace(leaf, reward=observation.reward)
        again = replace(recorded, nodes=(*above, leaf))
        return paid_at_end(again, await self._score(again))

    async def _ended_by_calls(self, leaf: Node) -> Node:
        """Make the calls of a last turn again.

        If no result is recorded, the calls may have ended the trajectory, or a limit did before they were run.
        """
        if not leaf.results and not self.can_end:
            return leaf
        results = await _called_again(self, leaf, leaf.results)
        again = paid(replace(leaf, results=results), results)
        if any(result.ends for result in results):
            return replace(again, stop=StopReason.ENDED)
        if leaf.results:
            return again
        if again.reward or self.environment.scores:
            raise UnknownOutcomeError("a recorded end whose calls may have been run or not")
        return leaf

    async def _score(self, trajectory: Trajectory) -> float:
        if not self.environment.scores:
            return 0.0
        return await self._within(partial(checked_score, self.session, trajectory))

    async def _within(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        answer = await within(self.environment.seconds or _SECONDS, ask)
        if isinstance(answer, Failure):
            raise UnknownOutcomeError(f"{WORLD_FAILED}: {answer.reason}"[:200])
        return answer

    async def close(self) -> None:
        """Close the session; what fails then changes no reward."""
        await within(self.environment.seconds or _SECONDS, partial(self.session.close))
