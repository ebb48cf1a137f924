"""The `python` tool: runs a program in the sandbox and shows what it printed.

As in ARPO's tool (arXiv 2507.19849), the value of a final bare expression is printed, and calls share no state.
Unlike ARPO's tool, this one tells the model when a program printed nothing, and does not run it again.

With `stateful`, the programs of one trajectory behave like cells of one interpreter, and a branch gets a copy of the
state. The state is the list of programs that succeeded: each call first runs them again, in a new process and with their
output dropped, then its own program. If one of them fails this time, it is dropped from the list, and the call's result
says so. So a fork equals its parent, and no process lives between calls. In return, the cost of a trajectory's calls
grows with the square of their number, and a program's time limit also covers the programs before it.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import Sandbox, SandboxResult, SandboxStatus, ToolSession
from ramify.net.failures import RequestFailedError
from ramify.tools.configs import PythonConfig
from ramify.tools.stateless import StatelessSession

MARGIN_SECONDS = 10.0
"""Time that a call may take beyond the program's own time, for its process to start and to end."""

_ERROR_LINES = 12
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-fA-F]+")

_DESCRIPTION = (
    "Runs a Python program and returns what it prints; the value of a last bare expression is printed too."
    " {state} There is no network."
)
_AFRESH = "Each call starts afresh."
_GOES_ON = "Names, modules and files of earlier calls are there, except of those that failed."
_FORGOTTEN = (
    "The program was not run: earlier program {number}, run again to restore the state, failed."
    " It is forgotten with all that it did; the next call starts from the other programs.\n{reason}"
)
_PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The program."}},
    "required": ["code"],
    "additionalProperties": False,
}


def python_spec(config: PythonConfig) -> ToolSpec:
    """Return the tool as prompts show it, with the deadline."""
    return ToolSpec(
        "python",
        _DESCRIPTION.format(state=_GOES_ON if config.stateful else _AFRESH),
        _PARAMETERS,
        forks=True,
        timeout_seconds=config.timeout_seconds + MARGIN_SECONDS,
    )


class PythonTool:
    """Implements `ramify.core.protocols.Tool` with a sandbox. Whoever creates the sandbox closes it."""

    def __init__(self, sandbox: Sandbox, config: PythonConfig) -> None:
        self._sandbox, self._config = sandbox, config
        self.spec = python_spec(config)

    async def open(self, problem: Problem) -> ToolSession:  # noqa: ARG002 - all problems start alike
        """Start a session."""
        return _StatefulSession(self) if self._config.stateful else StatelessSession(self.run)

    async def run(self, call: ToolCall, cells: Sequence[str] = ()) -> ToolResult:
        """Run one program, after `cells`.

        Raises:
            MachineError: No sandbox process could be started, or the sandbox service is down.
        """
        code = call.arguments.get("code")
        if call.malformed is not None or not isinstance(code, str):
            reason = call.malformed or 'expected one argument "code" with the program as text'
            return ToolResult(call.id, ToolStatus.MALFORMED, f"The call could not be read: {reason}.")
        try:
            result = await self._sandbox.run(code, self._config.timeout_seconds, cells)
        except RequestFailedError as error:
            text = "The program was not run: the sandbox service failed."
            return ToolResult(call.id, ToolStatus.ERROR, text, {"failure": error.kind.value})
        status, text = self._observation(result)
        info: dict[str, object] = {"sandbox_level": result.level}
        if result.remote:
            info["sandbox"] = "remote"
        if self._config.stateful:
            info |= {"state": "replayed", "cells": len(cells)}
        if result.failed_cell is not None:
            info |= {"state": "reset", "failed_cell": result.failed_cell}
            status, text = ToolStatus.ERROR, _FORGOTTEN.format(number=result.failed_cell + 1, reason=text)
        return ToolResult(call.id, status, text, info)

    def _observation(self, result: SandboxResult) -> tuple[ToolStatus, str]:
        """Return status and text that the model sees.

        A program that failed shows its output and then the error, each with half of the room. A program that timed out
        shows no output, since its length depends on chance.
        """
        if result.status is SandboxStatus.TIMEOUT:
            return (
                ToolStatus.TIMEOUT,
                f"The program was stopped: it ran longer than {self._config.timeout_seconds:g} seconds.",
            )
        output = _ADDRESS.sub("at 0x...", result.stdout).rstrip()
        if result.status is SandboxStatus.OK:
            if not output:
                return ToolStatus.EMPTY, "The program printed nothing."
            return ToolStatus.OK, _keep_head(output, self._config.max_output_chars)
        lines = _ADDRESS.sub("at 0x...", result.stderr).rstrip().splitlines()
        room = self._config.max_output_chars // 2 if output else self._config.max_output_chars
        reason = (
            _keep_tail("\n".join(lines[-_ERROR_LINES:]), room)
            if lines
            else "The program failed without a message."
        )
        return ToolStatus.ERROR, f"{_keep_head(output, room)}\n{reason}" if output else reason


class _StatefulSession:
    """The programs of one trajectory that succeeded."""

    def __init__(self, tool: PythonTool, cells: tuple[str, ...] = ()) -> None:
        self._tool = tool
        self._cells = cells
        self._in_turn = asyncio.Lock()

    async def call(self, call: ToolCall) -> ToolResult:
        async with self._in_turn:
            result = await self._tool.run(call, self._cells)
            if result.status in (ToolStatus.OK, ToolStatus.EMPTY):
                self._cells = (*self._cells, str(call.arguments["code"]))
            # A program that stayed in the list after failing would fail every later call.
            failed = result.info.get("failed_cell")
            if isinstance(failed, int):
                self._cells = self._cells[:failed] + self._cells[failed + 1 :]
            return result

    async def fork(self) -> ToolSession:
        return _StatefulSession(self._tool, self._cells)

    async def close(self) -> None:
        self._cells = ()


def _keep_head(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[output cut after {limit} characters]"


def _keep_tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[output cut to its last {limit} characters]\n{text[-limit:]}"
