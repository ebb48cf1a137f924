"""The session of a tool that keeps nothing between calls."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ramify.core.messages import ToolCall, ToolResult
from ramify.core.protocols import ToolSession


@dataclass(frozen=True, slots=True)
class StatelessSession:
    """Implements `ramify.core.protocols.ToolSession` with one function; a fork is the session itself."""

    run: Callable[[ToolCall], Awaitable[ToolResult]]

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call."""
        return await self.run(call)

    async def fork(self) -> ToolSession:
        """Return the session itself."""
        return self

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""
