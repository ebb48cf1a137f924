"""A sandbox on another machine: a service that runs programs over HTTP, in the wire format of SandboxFusion.

POST /run_code {code, language, run_timeout} answers {status, message, run_result: {status, return_code, stdout,
stderr, execution_time}}. We send our own runner with the program inside it, so programs behave there as they do here:
the value of a final bare expression is printed, tracebacks show the program's own lines, and earlier cells are run
first. Hash seeds and library versions are those of the service.

We cannot check how well the service isolates programs. The recipe declares a level, and each result says that it comes
from a remote sandbox.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ramify.core.protocols import Json, SandboxResult, SandboxStatus
from ramify.net.client import Answer, HttpClient
from ramify.sandbox import snippet


class RemoteSandbox:
    """Implements `ramify.core.protocols.Sandbox` with a client, which it closes.

    Args:
        client: The client for the service; its timeout must be above the time limit of programs.
        base_url: Address of the service, without the route.
        declared_level: Isolation level that the service's operator promises, 0 to 4; 0 promises nothing.
        headers: Headers for each request, such as a key.
    """

    def __init__(
        self,
        client: HttpClient,
        *,
        base_url: str,
        declared_level: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._address = f"{base_url.rstrip('/')}/run_code"
        self._level = declared_level
        self._headers = dict(headers or {})
        self._runner = Path(snippet.__file__).read_text(encoding="utf-8")

    @property
    def level(self) -> int:
        """The declared level."""
        return self._level

    async def run(self, code: str, timeout_seconds: float, cells: Sequence[str] = ()) -> SandboxResult:
        """Run one program, after `cells` if there are any.

        Raises:
            RequestFailedError: The service did not run it, or did not say how it ended.
            ServiceDownError: The service is down, refuses the key, or its budget is spent.
        """
        mark = snippet.new_mark()
        program = f"{self._runner}\n\nrun({code!r}, {tuple(cells)!r}, {mark!r}, prepare())\n"
        body: dict[str, Json] = {"code": program, "language": "python", "run_timeout": timeout_seconds}
        answer = await self._client.post_json(self._address, body, headers=self._headers)
        return self._result(answer, len(cells), mark)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _result(self, answer: Answer, num_cells: int, mark: str) -> SandboxResult:
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
        return SandboxResult(status, stdout, stderr, self._level, remote=True, failed_cell=failed)


def _outcome(answer: Answer) -> Mapping[str, Json]:
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


def _status(answer: Answer, outcome: Mapping[str, Json]) -> SandboxStatus:
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


def _text(answer: Answer, outcome: Mapping[str, Json], name: str) -> str:
    text = outcome.get(name)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise answer.malformed(f"expected {name} as text")
    return text
