"""How messages reach an MCP server: over a program's standard input and output, or streamable HTTP.

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
"""How long a program may take to end after its input has ended, and again after it was asked to."""


def transport(config: McpConfig, said: IO[str] | None) -> "AbstractAsyncContextManager[Any]":
    """The two streams of a client; what a program writes to standard error goes to `said`.

    Raises:
        MachineError: A key is missing.
    """
    return _program(config, said) if config.url is None else _service(config, config.url)


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
async def _program(config: McpConfig, said: IO[str] | None) -> AsyncIterator[Any]:
    import anyio
    from mcp.client.stdio import get_default_environment

    keys = {variable: read_key(variable) for variable in config.variables}
    loop = asyncio.get_running_loop()
    pipes, protocol = await loop.subprocess_exec(
        lambda: _Group(MOST_BYTES, loop),
        *config.command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL if said is None else said,
        env={**get_default_environment(), **keys},
        start_new_session=True,
    )
    program = Process(pipes, protocol, loop)
    try:
        heard, reads = anyio.create_memory_object_stream[Any](0)
        writes, asked = anyio.create_memory_object_stream[Any](0)
        async with heard, reads, writes, asked, anyio.create_task_group() as group:
            group.start_soon(_listen, program, heard)
            group.start_soon(_speak, program, asked)
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


async def _listen(program: Process, heard: "MemoryObjectSendStream[Any]") -> None:
    """Pass the server's messages on until its output ends, a message is too long, or nobody listens."""
    from anyio import BrokenResourceError
    from mcp.shared.message import SessionMessage

    assert program.stdout is not None
    async with heard:
        with suppress(OSError, ValueError, BrokenResourceError):
            while line := await program.stdout.readline():
                try:
                    message = _message(line)
                except (ValueError, RecursionError):
                    continue  # something for people
                await heard.send(SessionMessage(message))


def _message(line: bytes) -> "JSONRPCMessage":
    """A message. Half a character, as a program leaves it that cuts texts by length, becomes a question mark.

    Raises:
        ValueError: It is none.
        RecursionError: It is nested too deeply.
    """
    from mcp_types import jsonrpc_message_adapter

    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        mended = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(mended.encode(errors="replace"), by_name=False)


async def _speak(program: Process, asked: "MemoryObjectReceiveStream[Any]") -> None:
    """Pass the client's messages on; a server that hears no more is ended, and with it the calls that wait."""
    assert program.stdin is not None
    with suppress(OSError):
        async for message in asked:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            program.stdin.write(f"{text}\n".encode())
            await program.stdin.drain()
        return
    _kill(program.pid, signal.SIGKILL)


async def _end(program: Process) -> None:
    """End a program as the protocol asks: its input ends, then it is asked to end, then it is killed."""
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
