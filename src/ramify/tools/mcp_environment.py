"""An MCP server as an environment, over standard input and output or streamable HTTP.

Each trajectory has a connection of its own, and of a `command` a process of its own, so its state is its own. A server
cannot copy its state; a branch opens a new connection and makes the path's calls again.

Needs the package mcp (`ramify-rl[mcp]`).
"""

import asyncio
import json
import logging
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Literal

from ramify.core.errors import ConfigError, MachineError, RamifyError
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession
from ramify.net.secrets import shown
from ramify.runtime.daemon_threads import DaemonThreads
from ramify.tools.configs import McpConfig
from ramify.tools.mcp_transports import transport
from ramify.tools.server_tools import (
    ServerSession,
    ToolListError,
    call_tool,
    first_cause,
    in_words,
    list_tools,
    read_answer,
)

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp_types import ServerNotification

_GOODBYE_SECONDS = 2.0
"""Time that a service has to end a session."""


@dataclass(frozen=True, slots=True)
class McpEnvironment:
    """Implements `core.protocols.Environment` with the tools that a server listed for `open_mcp`."""

    config: McpConfig
    tools: Mapping[str, ToolSpec]
    branches: Literal["replay"] = field(default="replay", init=False)
    max_observations: int = field(default=0, init=False)
    scores: bool = field(default=False, init=False)
    opens: bool = field(default=False, init=False)

    @property
    def seconds(self) -> float:
        """Deadline of opening and closing a session."""
        return self.config.timeout_seconds

    async def open(self, problem: Problem, seed: int) -> EnvironmentSession:  # noqa: ARG002 - a server gets neither
        """Connect for one trajectory.

        Raises:
            ConnectionError: The server cannot be started or reached, or is no MCP server.
        """
        return await _connect(self.config)


def open_mcp(config: McpConfig) -> McpEnvironment:
    """Connect once to list the server's tools, and return the environment. Works within an event loop too.

    Raises:
        ConfigError: There is no such program, or the server has no tools.
        MachineError: The package mcp or a key is missing, or the server ends, does not answer or cannot be reached.
    """
    try:
        import mcp_types  # noqa: F401 - mcp 1.x does not have it
    except ImportError:
        raise MachineError("an MCP server needs the package mcp: pip install 'ramify-rl[mcp]'") from None
    # The package logs every line of a server that it cannot read, with a traceback.
    for name in ("mcp", "client"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    # A thread, since the caller may run in an event loop; a daemon, so that Ctrl-C need not wait for the server.
    job = DaemonThreads("mcp", 1).submit(lambda: asyncio.run(_list_tools(config)))
    return McpEnvironment(config, job.future.result())


async def _list_tools(config: McpConfig) -> Mapping[str, ToolSpec]:
    """Return the tools that the server lists."""
    if config.url is None:
        server, hint = shlex.join(config.command), "Run it by hand to see why."
    else:
        server, hint = config.url, "Expected the address of an MCP server, such as http://127.0.0.1:8000/mcp."
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        try:
            async with asyncio.timeout(config.timeout_seconds):
                session = await _connect(config, stderr)
        except TimeoutError:
            late = f"no answer within timeout_seconds = {config.timeout_seconds:g}"
            raise MachineError(f"mcp: {shown(server)}: {late}. {hint}") from None
        except ConnectionError as error:
            if isinstance(error.__cause__, ToolListError):
                raise ConfigError(f"mcp: {shown(server)}: {error}.") from None
            if isinstance(error.__cause__, FileNotFoundError | PermissionError):
                missing = f"expected a program that can be run, got {config.command[0]!r} ({error})"
                raise ConfigError(f"mcp: command: {shown(missing)}") from None
            stderr.seek(0)
            last = next(
                (f"; its last line: {line.strip()}" for line in reversed([*stderr]) if line.strip()), ""
            )
            raise MachineError(f"mcp: {shown(server)}: {shown(f'{error}{last[:500]}')}. {hint}") from None
        await session.close()
    if not session.tools:
        raise ConfigError(f"mcp: {shown(server)}: the server lists no tools. Choose a server with tools.")
    return session.tools


async def _connect(config: McpConfig, stderr: IO[str] | None = None) -> "McpSession":
    """Open a session; a program's standard error goes to `stderr`.

    Raises:
        ConnectionError: The server cannot be started or reached, or is no MCP server.
    """
    import anyio

    session = McpSession(config, anyio.CancelScope())
    session.owner = asyncio.create_task(session.own(stderr))
    try:
        await session.opened.wait()
        if isinstance(session.failure, RamifyError):
            raise session.failure
        if session.client is None:
            raise ConnectionError(session.why) from session.failure
    except BaseException:
        await session.close()
        raise
    return session


@dataclass(slots=True, eq=False)
class McpSession(ServerSession):
    """A trajectory's connection. Its task `owner` opens and closes it, because only one task may do both.

    Calls run in the tasks of their callers, so that each can be cancelled alone.
    """

    config: McpConfig
    scope: Any
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    opening: str = field(default="", init=False)
    owner: "asyncio.Task[None] | None" = None
    client: "ClientSession | None" = None
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    failure: BaseException | None = None
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _listing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_stale: bool = False

    async def own(self, stderr: IO[str] | None) -> None:
        """Hold the connection from its opening to its end; `failure` is what ended it."""
        import anyio
        from mcp import ClientSession

        try:
            with self.scope:
                async with (
                    transport(self.config, stderr) as (reads, writes),
                    ClientSession(reads, writes, message_handler=self._on_message) as client,
                ):
                    # Sessions are of the revisions that begin with this; later ones have no state on a connection.
                    await client.initialize()
                    self.tools = await list_tools(client, self.config.timeout_seconds)
                    self.client = client
                    self.opened.set()
                    await self._closing.wait()
                    self.scope.deadline = anyio.current_time() + _GOODBYE_SECONDS
        except Exception as error:  # noqa: BLE001 - whatever ends it, calls report it
            self.failure = first_cause(error)
        finally:
            self.opened.set()

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call. A server that has ended is an error at once, for this call and all later ones."""
        from mcp import MCPError

        assert self.client is not None
        try:
            json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            text = f"The call to {call.name} was not run: its arguments cannot be sent: {error}."
            return ToolResult(call.id, ToolStatus.ERROR, text)
        try:
            answer = await call_tool(self.client, call)
        except MCPError as error:
            text = f"The call to {call.name} failed: {in_words(error)}."
            return ToolResult(call.id, ToolStatus.ERROR, text)
        except ValueError:
            text = f"The call to {call.name} failed: the server answered with something that is not a result of a call."
            return ToolResult(call.id, ToolStatus.ERROR, text)
        # A tool that the call added can be called next, also when a branch makes both calls again.
        await self._refresh()
        return read_answer(call, answer)

    async def close(self) -> None:
        """End the connection, and a `command`'s processes, even if the caller is cancelled."""
        assert self.owner is not None
        self._closing.set()
        if not self.opened.is_set():
            self.scope.cancel()
        await asyncio.wait((self.owner,))

    @property
    def why(self) -> str:
        """The reason why there is no connection."""
        return "it was closed while it opened" if self.failure is None else in_words(self.failure)

    async def _on_message(self, message: "ServerNotification | Exception") -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._is_stale = True
            await self._refresh()

    async def _refresh(self) -> None:
        """Ask for the tools again if they may have changed; if that fails, the old ones stay."""
        from mcp import MCPError

        async with self._listing:
            if self._is_stale and self.client is not None:
                self._is_stale = False
                with suppress(MCPError, TimeoutError, ToolListError):
                    self.tools = await list_tools(self.client, self.config.timeout_seconds)
