"""An MCP server as an environment, over standard input and output or streamable HTTP.

Each trajectory has a connection of its own, and of a `command` a process of its own, so its state is its own. A server
cannot copy its state; a branch opens a new connection and makes the path's calls again.

The package mcp could start a program too. Here, its end is noticed at once even while its children hold its output, no cancelled
task leaves it running, and a long line takes time in proportion to its length.

Needs the package mcp (`ramify-rl[mcp]`).
"""

import asyncio
import json
import logging
import os
import shlex
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Literal

from ramify.core.errors import ConfigError, MachineError, RamifyError
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession
from ramify.net.secrets import read_key, shown
from ramify.runtime.daemon_threads import DaemonThreads
from ramify.tools.configs import McpConfig
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
if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp_types import JSONRPCMessage

MOST_BYTES = 64 * 2**20
"""Most bytes of one message of a server; the rollout cuts a result to far fewer."""
PATIENCE_SECONDS = 2.0
"""Time that a program has to end after its input has ended, and again after SIGTERM."""


def transport(config: McpConfig, stderr: IO[str] | None) -> "AbstractAsyncContextManager[Any]":
    """Return the two streams of a client; a program's standard error goes to `stderr`.

    Raises:
        MachineError: A key is missing.
    """
    return _program(config, stderr) if config.url is None else _service(config, config.url)


@asynccontextmanager
async def _service(config: McpConfig, url: str) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client

    from ramify.net.mcp_http import limited_client

    key = None if config.key_variable is None else read_key(config.key_variable)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        limited_client(headers, seconds=config.timeout_seconds, max_bytes=MOST_BYTES) as http,
        streamable_http_client(url, http_client=http, max_sse_event_size=MOST_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def _program(config: McpConfig, stderr: IO[str] | None) -> AsyncIterator[Any]:
    import anyio
    from mcp.client.stdio import get_default_environment

    keys = {variable: read_key(variable) for variable in config.variables}
    loop = asyncio.get_running_loop()
    pipes, protocol = await loop.subprocess_exec(
        lambda: _Group(MOST_BYTES, loop),
        *config.command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL if stderr is None else stderr,
        env={**get_default_environment(), **keys},
        start_new_session=True,
    )
    program = Process(pipes, protocol, loop)
    try:
        received, reads = anyio.create_memory_object_stream[Any](0)
        writes, unsent = anyio.create_memory_object_stream[Any](0)
        async with received, reads, writes, unsent, anyio.create_task_group() as group:
            group.start_soon(_receive, program, received)
            group.start_soon(_send, program, unsent)
            yield reads, writes
            group.cancel_scope.cancel()
    finally:
        try:
            with anyio.CancelScope(shield=True):
                await _end(program)
        finally:
            pipes.close()


class _Group(SubprocessStreamProtocol):
    """A program's pipes. When it has ended, its children end too, so that its output ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._pid = transport.get_pid()
        super().connection_made(transport)

    def process_exited(self) -> None:
        _kill(self._pid, signal.SIGKILL)
        super().process_exited()


async def _receive(program: Process, received: "MemoryObjectSendStream[Any]") -> None:
    """Pass the server's messages on until its output ends, a message is too long, or the client is gone."""
    from anyio import BrokenResourceError
    from mcp.shared.message import SessionMessage

    assert program.stdout is not None
    async with received:
        with suppress(OSError, ValueError, BrokenResourceError):
            while line := await program.stdout.readline():
                try:
                    message = _message(line)
                except (ValueError, RecursionError):
                    continue  # a line for people, such as a log
                await received.send(SessionMessage(message))


def _message(line: bytes) -> "JSONRPCMessage":
    """Parse a message. Half a character, left by a program that cuts texts by length, becomes a question mark.

    Raises:
        ValueError: It is no message.
        RecursionError: It is nested too deeply.
    """
    from mcp_types import jsonrpc_message_adapter

    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        repaired = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(repaired.encode(errors="replace"), by_name=False)


async def _send(program: Process, unsent: "MemoryObjectReceiveStream[Any]") -> None:
    """Pass the client's messages on; a server that closed its input is killed, which fails the waiting calls."""
    assert program.stdin is not None
    with suppress(OSError):
        async for message in unsent:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            program.stdin.write(f"{text}\n".encode())
            await program.stdin.drain()
        return
    _kill(program.pid, signal.SIGKILL)


async def _end(program: Process) -> None:
    """End a program as the protocol asks: its input ends, then SIGTERM, then SIGKILL."""
    assert program.stdin is not None
    try:
        program.stdin.close()
        if not await _has_ended(program):
            _kill(program.pid, signal.SIGTERM)
            await _has_ended(program)
    finally:
        # Also if this task is cancelled, as it is when the event loop ends.
        if program.returncode is None:
            _kill(program.pid, signal.SIGKILL)
            await _has_ended(program)


async def _has_ended(program: Process) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await program.wait()
    return program.returncode is not None


def _kill(pid: int, number: signal.Signals) -> None:
    """Send a signal to a program and its children."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


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
