"""The transports of an MCP server: a program's standard input and output, or streamable HTTP.

The package mcp could start a program too. Here, its end is noticed at once even while its children hold its output, no
cancelled task leaves it running, and a long line takes time in proportion to its length.
"""

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from ramify.net.secrets import read_key
from ramify.tools.configs import McpConfig

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
