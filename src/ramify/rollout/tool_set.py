"""A set of tools as an environment: each trajectory has a session of each tool, and no turn but a call does anything."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from ramify.core.errors import ContentError
from ramify.core.messages import Observation, ParsedTurn, Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession, Tool, ToolSession
from ramify.core.tree import Trajectory
from ramify.rollout.calls import Failure, within


@dataclass(frozen=True, slots=True)
class ToolSet:
    """Implements `core.protocols.Environment` with tools by name.

    Each tool keeps its own deadline. One that cannot be opened or forked in time answers with errors from then on, and the
    others go on.

    Attributes:
        members: The tools by name.
        max_calls: Most calls to a tool on one trajectory; further ones are answered without running it. A call that is made
            again (by its id), corrected or because it is slow, counts once.
        limit_replies: The answer to these further calls, for tools that have one of their own.
        repeat_replies: For some tools, the answer to a call whose arguments an earlier one on the trajectory had. Such a call
            is not run, and does not count toward `max_calls`.
    """

    members: Mapping[str, Tool]
    max_calls: Mapping[str, int] = field(default_factory=dict)
    limit_replies: Mapping[str, str] = field(default_factory=dict)
    repeat_replies: Mapping[str, str] = field(default_factory=dict)
    seconds: None = field(default=None, init=False)
    max_observations: int = field(default=0, init=False)
    scores: bool = field(default=False, init=False)
    opens: bool = field(default=False, init=False)

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The tools' descriptions."""
        return {name: tool.spec for name, tool in self.members.items()}

    @property
    def branches(self) -> Literal["fork", "never"]:
        """By `fork`, if every tool can."""
        return "fork" if all(tool.spec.forks for tool in self.members.values()) else "never"

    async def open(self, problem: Problem, seed: int) -> EnvironmentSession:  # noqa: ARG002 - tools draw nothing
        """Return a session of each tool."""
        return await _filled(
            ToolSetSession(self),
            {name: partial(tool.open, problem) for name, tool in self.members.items()},
        )


@dataclass(slots=True)
class ToolSetSession:
    """The sessions of a trajectory's tools by name, and each call that was run by its id."""

    tool_set: ToolSet
    calls: dict[str, ToolCall] = field(default_factory=dict)
    sessions: dict[str, ToolSession] = field(default_factory=dict)
    opening: str = field(default="", init=False)
    _is_closed: bool = False

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """All tools of the set."""
        return self.tool_set.tools

    async def call(self, call: ToolCall) -> ToolResult:
        """Have the tool run the call, unless the trajectory has made all that it may make, or has made this one before."""
        most = self.tool_set.max_calls.get(call.name)
        others = [other for other in self.calls.values() if other.name == call.name and other.id != call.id]
        if most is not None and len(others) >= most:
            text = f"The limit of {most} calls to {call.name} is reached. Answer with what is known."
            text = self.tool_set.limit_replies.get(call.name, text)
            return ToolResult(call.id, ToolStatus.OVER_LIMIT, text)
        repeat = self.tool_set.repeat_replies.get(call.name)
        if repeat is not None and any(other.arguments == call.arguments for other in others):
            return ToolResult(call.id, ToolStatus.OVER_LIMIT, repeat, {"repeated": True})
        self.calls[call.id] = call
        return await self.sessions[call.name].call(call)

    async def step(self, turn: ParsedTurn) -> Observation:  # noqa: ARG002 - nobody is there
        """Nothing."""
        return Observation()

    async def fork(self, seed: int) -> EnvironmentSession:  # noqa: ARG002 - tools draw nothing
        """Return forks of all sessions in their current state."""
        return await _filled(
            ToolSetSession(self.tool_set, dict(self.calls)),
            {name: partial(_fork, session) for name, session in self.sessions.items()},
        )

    async def score(self, trajectory: Trajectory) -> float:  # noqa: ARG002 - tools pay nothing
        """Nothing."""
        return 0.0

    async def close(self) -> None:
        """Close all sessions; one that does not close within its tool's deadline is not waited for."""
        self._is_closed = True
        closing = [
            within(self._seconds(name), partial(_close, session)) for name, session in self.sessions.items()
        ]
        await asyncio.gather(*closing)

    async def take(self, name: str, give: Callable[[], Awaitable[ToolSession]]) -> None:
        """Add the session that `give` returns; one that comes too late is closed."""

        async def taken() -> None:
            session = await give()
            if name in self.sessions or self._is_closed:
                await session.close()
            else:
                self.sessions[name] = session

        answer = await within(self._seconds(name), taken)
        if isinstance(answer, Failure):
            if isinstance(answer.raised, ContentError):
                # Without this tool the trajectory would be another task.
                raise answer.raised
            self.sessions[name] = BrokenSession(answer.reason)

    def _seconds(self, name: str) -> float:
        return self.tool_set.members[name].spec.timeout_seconds


async def _filled(
    session: ToolSetSession, gives: Mapping[str, Callable[[], Awaitable[ToolSession]]]
) -> ToolSetSession:
    try:
        for name, give in gives.items():
            await session.take(name, give)
    except BaseException:
        await session.close()
        raise
    return session


@dataclass(frozen=True, slots=True)
class BrokenSession:
    """Stands in for a session that the tool could not open; every call gets the reason as an error."""

    reason: str

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the reason, as an error."""
        text = f"The tool {call.name} is not available: {self.reason}"
        return ToolResult(call.id, ToolStatus.ERROR, text)

    async def fork(self) -> ToolSession:
        """Return itself, as there is no state."""
        return self

    async def close(self) -> None:
        """Do nothing, as it holds nothing."""


# Functions, so that the attribute is looked up within the guarded task: a tool's "session" may lack even these methods.
async def _fork(session: ToolSession) -> ToolSession:
    return await session.fork()


async def _close(session: ToolSession) -> None:
    await session.close()
