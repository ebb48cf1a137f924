"""The tools' states of a trajectory: opened with it, copied for a branch, closed at its end."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import Tool, ToolSession
from ramify.rollout.calls import Failure, within

Sessions: TypeAlias = Mapping[str, ToolSession]
"""By the tool's name."""


@dataclass(frozen=True, slots=True)
class BrokenSession:
    """Stands in for a session that the tool could not give: every call is told why."""

    reason: str

    async def call(self, call: ToolCall) -> ToolResult:
        """The reason, as an error."""
        text = f"The tool {call.name} is not available: {self.reason}"
        return ToolResult(call.id, ToolStatus.ERROR, text)

    async def fork(self) -> ToolSession:
        """It has no state."""
        return self

    async def close(self) -> None:
        """It holds nothing."""


@dataclass(slots=True)
class SessionKeeper:
    """Opens, copies and closes the sessions of one tree, so that none is left behind whatever fails."""

    tools: Mapping[str, Tool]
    problem: Problem
    group: asyncio.TaskGroup
    _held: dict[int, Sessions] = field(default_factory=dict)

    async def open(self) -> Sessions:
        """Sessions for a new root; a tool that fails or is late answers with errors from then on."""
        opened = self._hold()
        for name, tool in self.tools.items():
            opened[name] = _sound(await within(tool.spec.timeout_seconds, tool.open(self.problem)))
        return opened

    async def fork(self, sessions: Sessions) -> Sessions:
        """Copies of `sessions` as they are now."""
        copies = self._hold()
        for name, session in sessions.items():
            copies[name] = _sound(await within(self.tools[name].spec.timeout_seconds, session.fork()))
        return copies

    async def close(self, groups: Sequence[Sessions]) -> None:
        """Close and forget; a tool that fails to close has lost its claim to be waited for."""
        for sessions in groups:
            self._held.pop(id(sessions), None)
            for name, session in sessions.items():
                await within(self.tools[name].spec.timeout_seconds, session.close())

    def discard(self, groups: Sequence[Sessions]) -> None:
        """Close without waiting."""
        if groups:
            self.group.create_task(self.close(groups))

    async def close_all(self) -> None:
        """Close what is still held: after a failure, also what was only half opened or half copied."""
        await self.close(tuple(self._held.values()))

    def _hold(self) -> dict[str, ToolSession]:
        sessions: dict[str, ToolSession] = {}
        self._held[id(sessions)] = sessions
        return sessions


def _sound(session: ToolSession | Failure) -> ToolSession:
    return BrokenSession(session.reason) if isinstance(session, Failure) else session
