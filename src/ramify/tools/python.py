"""The `python` tool: runs a program in the sandbox and shows what it printed; and a sandbox on another machine.

As in ARPO's tool (arXiv 2507.19849), the value of a final bare expression is printed, and calls share no state.
Unlike ARPO's tool, this one tells the model when a program printed nothing, and does not run it again. A program that comes in
one Markdown fence runs without the fence.

With `stateful`, the programs of one trajectory behave like cells of one interpreter, and a branch gets a copy of the
state. The state is the list of programs that succeeded: each call first runs them again, in a new process and with their
output dropped, then its own program. If one of them fails this time, it is dropped from the list, and the call's result
says so. So a fork equals its parent, and no process lives between calls. In return, the cost of a trajectory's calls
grows with the square of their number, and a program's time limit also covers the programs before it.
"""

import ast
import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ramify.core.errors import ConfigError
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import Json, Sandbox, SandboxResult, SandboxStatus, ToolSession
from ramify.net.failures import RequestFailedError
from ramify.sandbox import snippet
from ramify.tools.configs import PythonConfig
from ramify.tools.stateless import StatelessSession

if TYPE_CHECKING:
    from ramify.net.client import HttpClient
    from ramify.net.exchange import Answer
    from ramify.sandbox.program_setup import ProgramSetup

MARGIN_SECONDS = 10.0
"""Time that a call may take beyond the program's own time, for its process to start and to end."""

_ERROR_LINES = 12
_MOST_PACKAGES = 12
"""A note names so many."""
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-fA-F]+")
_FENCE: Final = re.compile(
    r"(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?:(?:python|py)[0-9.]*+(?:[ \t\r]*+\n|[ \t]++)|\r?\n)", re.IGNORECASE
)
_FOREIGN_LINES: Final = (
    (
        re.compile(r"^[ \t]*+(?:```|~~~)", re.MULTILINE),
        "The program has Markdown fences or text around it. Send the program only, or in one ```python fence.",
    ),
    (
        re.compile(r"^[ \t]*+(?:!|%{1,2}+)[a-z]", re.MULTILINE),
        "Lines that begin with ! or % are commands of a notebook. Send the program without them.",
    ),
    (
        re.compile(r"^>>> ", re.MULTILINE),
        "The lines begin with the prompts of a console. Send the program without them.",
    ),
)
"""Lines that are no Python, and what is said of them."""
_MISSING_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([^']{1,200}+)'")

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


def setup_of(config: PythonConfig) -> "ProgramSetup":
    """Return what each program starts with: the preamble, and the packages of a list or an environment.

    Raises:
        ConfigError: The preamble is not Python, a package is not installed, or the environment cannot be used.
    """
    from ramify.sandbox.program_setup import ProgramSetup, environment_setup, packages_setup

    preamble = _preamble(config.preamble)
    if config.environment is not None:
        return environment_setup(config.environment, preamble)
    return packages_setup(config.packages, preamble) if config.packages else ProgramSetup(preamble)


def _preamble(source: Path | tuple[str, ...] | None) -> str:
    if source is None:
        return ""
    where = f"tools.python.preamble: {source}" if isinstance(source, Path) else "tools.python.preamble"
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else "\n".join(source)
        statements = ast.parse(text).body
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise ConfigError(f"{where}, line {error.lineno}: not Python: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not Python: {error}") from None
    if not statements:
        raise ConfigError(f"{where}: expected statements, got none. Remove the key.")
    return text


class PythonTool:
    """Implements `ramify.core.protocols.Tool` with a sandbox. Whoever creates the sandbox closes it."""

    def __init__(self, sandbox: Sandbox, config: PythonConfig, setup: "ProgramSetup | None" = None) -> None:
        self._sandbox, self._config, self._setup = sandbox, config, setup
        self.spec = python_spec(config)

    async def open(self, problem: Problem) -> ToolSession:  # noqa: ARG002 - all problems start alike
        """Start a session."""
        return _StatefulSession(self) if self._config.stateful else StatelessSession(self.run)

    async def run(self, call: ToolCall, cells: Sequence[str] = ()) -> ToolResult:
        """Run one program, after `cells`.

        Raises:
            MachineError: No sandbox process could be started, or the sandbox service is down.
        """
        code = program_of(call)
        if code is None:
            reason = call.malformed or 'expected one argument "code" with the program as text'
            return ToolResult(call.id, ToolStatus.MALFORMED, f"The call could not be read: {reason}.")
        try:
            result = await self._sandbox.run(code, self._config.timeout_seconds, cells)
        except RequestFailedError as error:
            text = "The program was not run: the sandbox service failed."
            return ToolResult(call.id, ToolStatus.ERROR, text, {"failure": error.kind.value})
        status, text = self._observation(result)
        if status is ToolStatus.ERROR and (note := self._note(code, result)):
            # In the error's own line, which the debugger quotes.
            text = f"{text}. {note}"
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

    def _note(self, code: str, result: SandboxResult) -> str:
        """Return what the policy should know about a program that failed, besides its error; "" if nothing."""
        error = result.stderr.rstrip().rpartition("\n")[2]
        if result.failed_cell is not None:
            return ""
        if error.startswith(("SyntaxError:", "IndentationError:")):
            # Such lines inside a text of three quotes belong to the program.
            if any(quotes in code for quotes in ('"""', "'''")):
                return ""
            return next((note for lines, note in _FOREIGN_LINES if lines.search(code)), "")
        missing = _MISSING_MODULE.match(error)
        # The packages of a remote sandbox are unknown here.
        if missing is None or result.remote:
            return ""
        # Not at the top: `--dry-run` reads the tool's description and starts no program.
        from ramify.sandbox.launch import installed
        from ramify.sandbox.program_setup import ProgramSetup

        packages = installed(self._setup or ProgramSetup())
        if missing[1].partition(".")[0] in {*packages, *sys.stdlib_module_names}:
            return ""
        if len(packages) > _MOST_PACKAGES:
            return f"The tool has the standard library and {len(packages)} packages, of which this is none."
        *others, last = ("the standard library", *packages)
        return f"The tool has {', '.join(others)} and {last}." if others else f"The tool has {last}."


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
                self._cells = (*self._cells, program_of(call) or "")
            # A program that stayed in the list after failing would fail every later call.
            failed = result.info.get("failed_cell")
            if isinstance(failed, int):
                self._cells = self._cells[:failed] + self._cells[failed + 1 :]
            return result

    async def fork(self) -> ToolSession:
        return _StatefulSession(self._tool, self._cells)

    async def close(self) -> None:
        self._cells = ()


def program_of(call: ToolCall) -> str | None:
    """Return the program of a call, without a Markdown fence around it; None if the call holds no program."""
    code = call.arguments.get("code")
    if call.malformed is not None or not isinstance(code, str):
        return None
    text = code.strip()
    opening = _FENCE.match(text)
    if opening is None:
        return code
    # The closing fence may be missing. Line breaks stay, so a program behind the fence begins on line 1.
    return text[opening.end() :].removesuffix(opening["fence"]).rstrip()


def _keep_head(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[output cut after {limit} characters]"


def _keep_tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[output cut to its last {limit} characters]\n{text[-limit:]}"


class RemoteSandbox:
    """Implements `ramify.core.protocols.Sandbox` with a service that speaks SandboxFusion's wire format over HTTP.

    POST /run_code {code, language, run_timeout} answers {status, message, run_result: {status, return_code, stdout,
    stderr, execution_time}}. We send our own runner with the program inside it, so programs behave there as they do
    here: the value of a final bare expression is printed, tracebacks show the program's own lines, and earlier cells
    are run first. Hash seeds and library versions are those of the service.

    We cannot check how well the service isolates programs. The recipe declares a level, and each result says that it
    comes from a remote sandbox. `close` closes the client.

    Args:
        client: The client for the service; its timeout must be above the time limit of programs.
        base_url: Address of the service, without the route.
        declared_level: Isolation level that the service's operator promises, 0 to 4; 0 promises nothing.
        headers: Headers for each request, such as a key.
        preamble: Runs before each program, which starts with its names.
    """

    def __init__(
        self,
        client: "HttpClient",
        *,
        base_url: str,
        declared_level: int = 0,
        headers: Mapping[str, str] | None = None,
        preamble: str = "",
    ) -> None:
        self._preamble = preamble
        self._client = client
        self._address = f"{base_url.rstrip('/')}/run_code"
        self.level = declared_level
        self._headers = dict(headers or {})
        self._runner = Path(snippet.__file__).read_text(encoding="utf-8")

    async def run(self, code: str, timeout_seconds: float, cells: Sequence[str] = ()) -> SandboxResult:
        """Run one program, after `cells` if there are any.

        Raises:
            RequestFailedError: The service did not run it, or did not say how it ended.
            ServiceDownError: The service is down, refuses the key, or its budget is spent.
        """
        mark = snippet.new_mark()
        steps = (
            "_names = prepare()",
            f"run_preamble({self._preamble!r}, _names)",
            f"run({code!r}, {tuple(cells)!r}, {mark!r}, _names)",
        )
        program = "\n".join((self._runner, "", *steps, ""))
        body: dict[str, Json] = {"code": program, "language": "python", "run_timeout": timeout_seconds}
        answer = await self._client.post_json(self._address, body, headers=self._headers)
        return self._result(answer, len(cells), mark)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _result(self, answer: "Answer", num_cells: int, mark: str) -> SandboxResult:
        outcome = _outcome(answer)
        stdout, stderr = (_text(answer, outcome, name) for name in ("stdout", "stderr"))
        status = _status(answer, outcome)
        num_marks = 0
        while num_cells and num_marks <= num_cells and stdout.startswith(mark):
            num_marks, stdout = num_marks + 1, stdout.removeprefix(mark)
        failed = snippet.failed_cell(num_marks, num_cells)
        stdout, stderr = "" if failed is not None else stdout, snippet.own_errors(stderr, mark, failed)
        if status is SandboxStatus.OK and failed is not None:
            status, stderr = SandboxStatus.ERROR, snippet.NOT_REPLAYED
        return SandboxResult(status, stdout, stderr, self.level, remote=True, failed_cell=failed)


def _outcome(answer: "Answer") -> Mapping[str, Json]:
    """Return the `run_result` of an answer.

    Raises:
        RequestFailedError: The service started no process, or reported nothing about it.
    """
    read = answer.json()
    if not isinstance(read, Mapping) or read.get("status") not in ("Success", "Failed", "SandboxError"):
        raise answer.malformed('expected a JSON object with "status": Success, Failed or SandboxError')
    outcome = read.get("run_result")
    if read["status"] == "SandboxError" or not isinstance(outcome, Mapping):
        raise answer.malformed(f"the service ran nothing: {str(read.get('message', ''))[:200]}")
    return outcome


def _status(answer: "Answer", outcome: Mapping[str, Json]) -> SandboxStatus:
    ended, code = outcome.get("status"), outcome.get("return_code")
    if ended == "TimeLimitExceeded":
        return SandboxStatus.TIMEOUT
    if ended == "Error":
        return SandboxStatus.KILLED
    if ended != "Finished" or not isinstance(code, int):
        raise answer.malformed(
            'expected a run_result with "status": Finished, Error or TimeLimitExceeded, and its return_code'
        )
    if code == 0:
        return SandboxStatus.OK
    return SandboxStatus.KILLED if code < 0 else SandboxStatus.ERROR


def _text(answer: "Answer", outcome: Mapping[str, Json], name: str) -> str:
    text = outcome.get(name)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise answer.malformed(f"expected {name} as text")
    return text
