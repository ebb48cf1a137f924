"""Worlds in which other trainers' conversations go on: tools or an environment of a recipe, or the recorded results themselves."""

import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from ramify.core.errors import ContentError
from ramify.core.messages import Calls, Final, ParsedTurn, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import Environment, EnvironmentSession, Json
from ramify.core.tree import Node, Trajectory, Tree
from ramify.rollout.calls import Failure, within
from ramify.study.conversations import ForeignRun

Value = TypeVar("Value")

_SECONDS = 60.0
"""Deadline of an environment that names none."""


class UnknownOutcomeError(Exception):
    """A trajectory whose reward cannot be known; the message says why, in words that are the same for all such."""


class WorldSession(Protocol):
    """A world on one trajectory. Its methods raise `UnknownOutcomeError`."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the result of a call."""

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
    """Make the calls of a path again; returns its nodes with what the world pays for each turn.

    Raises:
        UnknownOutcomeError: A result differs from the record.
    """
    nodes = []
    for node, reply in itertools.pairwise(above):
        results = []
        for call, recorded in zip(node.calls, reply.results, strict=False):
            result = await session.call(call)
            if result.text != recorded.text:
                raise UnknownOutcomeError("a call on the way that gave another result than the recorded one")
            results.append(result)
        nodes.append(paid(node, results))
    return [*nodes, above[-1]]


def paid(node: Node, results: Sequence[ToolResult]) -> Node:
    """Return a turn with what the world paid for its calls."""
    return replace(node, reward=sum(result.reward for result in results))


def paid_at_end(trajectory: Trajectory, reward: float) -> Trajectory:
    """Return a trajectory with what the world paid at its end."""
    leaf = replace(trajectory.leaf, reward=trajectory.leaf.reward + reward)
    return replace(trajectory, nodes=(*trajectory.nodes[:-1], leaf))


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
    """Return the first result of each call in the conversations of a problem, by name and arguments."""
    results: dict[str, ToolResult] = {}
    for trajectory in tree.trajectories:
        for call, result in trajectory.exchanges:
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

    async def ended(self, trajectory: Trajectory) -> float:  # noqa: ARG002 - a record pays nothing
        """Return 0; of a problem whose user replies, an answer may not be the end."""
        if self.has_replies:
            raise UnknownOutcomeError("an answer that a user may have replied to")
        return 0.0

    async def scored_end(self, recorded: Trajectory) -> Trajectory:
        """Return it as it is."""
        return recorded

    async def close(self) -> None:
        """Do nothing: it is a record."""


@dataclass(frozen=True, slots=True)
class LiveWorld:
    """The tools or the environment of a recipe."""

    environment: Environment
    problems: Sequence[Problem]

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
        opened = await within(
            self.environment.seconds or _SECONDS,
            lambda: self.environment.open(self.problems[problem], problem),
        )
        if isinstance(opened, Failure):
            raise UnknownOutcomeError("the environment could not be opened")
        return LiveSession(self.environment, opened)


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A session of an environment; a call that fails or takes too long is a result."""

    environment: Environment
    session: EnvironmentSession

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the call."""
        spec = self.session.tools.get(call.name)
        if call.malformed is not None:
            return ToolResult(call.id, ToolStatus.MALFORMED, call.malformed)
        if spec is None:
            return ToolResult(call.id, ToolStatus.UNKNOWN_TOOL, f"There is no tool {call.name}.")
        answer = await within(spec.timeout_seconds, lambda: self.session.call(call))
        if isinstance(answer, Failure):
            if isinstance(answer.raised, ContentError):
                raise UnknownOutcomeError("a call that the environment refuses")
            return ToolResult(call.id, ToolStatus.ERROR, answer.reason)
        return answer

    async def ended(self, trajectory: Trajectory) -> float:
        """Return what the environment pays for the answer and the whole."""
        turn: ParsedTurn = trajectory.leaf.turn or Final("")
        paid = 0.0
        if self.environment.max_observations and not isinstance(turn, Calls):
            reply = await self._within(partial(self.session.step, turn))
            if reply.messages and not reply.ends:
                raise UnknownOutcomeError("an answer that the environment replied to")
            paid += reply.reward
        if self.environment.scores:
            paid += await self._within(partial(self.session.score, trajectory))
        return paid

    async def scored_end(self, recorded: Trajectory) -> Trajectory:
        """Make its calls again, and end it."""
        again = replace(recorded, nodes=tuple(await replay(self, recorded.nodes)))
        return paid_at_end(again, await self.ended(again))

    async def _within(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        answer = await within(self.environment.seconds or _SECONDS, ask)
        if isinstance(answer, Failure):
            raise UnknownOutcomeError("the environment failed at the end")
        return answer

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()
