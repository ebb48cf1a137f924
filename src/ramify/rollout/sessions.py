"""The tool sessions of a trajectory: opened when it starts, forked for a branch, closed when it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import Tool, ToolSession
from ramify.rollout.asking import Failure, within

Sessions: TypeAlias = Mapping[str, ToolSession]
"""Sessions by tool name."""


@dataclass(frozen=True, slots=True)
class BrokenSession:
    """Stands in for a session that the tool could not open; every call gets the reason as an error."""

    reason: str

    async def call(self, call: ToolCall) -> ToolResult:
        """The reason, as an error."""
        text = f"The tool {call.name} is not available: {self.reason}"
        return ToolResult(call.id, ToolStatus.ERROR, text)

    async def fork(self) -> ToolSession:
        """Return itself, as there is no state."""
        return self

    async def close(self) -> None:
        """Do nothing, as it holds nothing."""


@dataclass(slots=True)
class SessionKeeper:
    """Opens, forks and closes the sessions of one tree, so that none is left open whatever fails."""

    tools: Mapping[str, Tool]
    problem: Problem
    _held: dict[int, dict[str, ToolSession]] = field(default_factory=dict)
    _closing: list["asyncio.Task[object]"] = field(default_factory=list)

    async def open(self) -> Sessions:
        """Sessions for a new root; a tool that fails or is too slow answers with errors from then on."""
        opened = self._hold()
        for name, tool in self.tools.items():
            await self._take(opened, name, partial(tool.open, self.problem))
        return opened

    async def fork(self, sessions: Sessions) -> Sessions:
        """Forks of `sessions` in their current state."""
        copies = self._hold()
        for name, session in sessions.items():
            await self._take(copies, name, partial(_fork, session))
        return copies

    def close(self, *groups: Sessions) -> None:
        """Close sessions in the background; only `close_all` waits for it."""
        for sessions in groups:
            self._held.pop(id(sessions), None)
            for name, session in sessions.items():
                seconds = self.tools[name].spec.timeout_seconds
                self._closing.append(asyncio.create_task(within(seconds, partial(_close, session))))

    async def close_all(self) -> None:
        """Close all sessions still held (after a failure, also those half opened or half forked), and wait for it.

        A tool that does not close within its deadline is not waited for.
        """
        self.close(*self._held.values())
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _hold(self) -> dict[str, ToolSession]:
        sessions: dict[str, ToolSession] = {}
        self._held[id(sessions)] = sessions
        return sessions

    async def _take(
        self, sessions: dict[str, ToolSession], name: str, give: Callable[[], Awaitable[ToolSession]]
    ) -> None:
        """Add the session that `give` returns to `sessions`; a session that comes too late is closed."""

        async def take() -> None:
            session = await give()
            if name in sessions or id(sessions) not in self._held:
                await session.close()
            else:
                sessions[name] = session

        answer = await within(self.tools[name].spec.timeout_seconds, take)
        if isinstance(answer, Failure):
            sessions[name] = BrokenSession(answer.reason)


# Functions, so that the attribute is looked up within the guarded task: a tool's "session" may lack even these methods.
async def _fork(session: ToolSession) -> ToolSession:
    return await session.fork()


async def _close(session: ToolSession) -> None:
    await session.close()
