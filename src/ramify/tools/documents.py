"""Extracting the text of fetched documents, in separate processes with limits on time and memory."""

import asyncio
import base64
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from ramify.net.failures import FailureKind, RequestFailedError
from ramify.sandbox.levels import seccomp_program

Kind: TypeAlias = Literal["html", "pdf", "plain"]
_WORKER: Final = Path(__file__).with_name("document_worker.py")
_START_SECONDS: Final = 20.0
_KINDS: Final[dict[str, Kind]] = {
    "": "html",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/pdf": "pdf",
    "application/x-pdf": "pdf",
}
_PLAIN_TYPES: Final = ("application/json", "application/xml", "application/yaml", "application/x-ndjson")


@dataclass(frozen=True, slots=True)
class Document:
    """The readable text of a document; `title` is "" if it has none."""

    title: str
    text: str


def kind_of(content_type: str, body: bytes) -> Kind:
    """The kind of a document, from its content type; a body that begins like a PDF is a PDF in any case.

    Raises:
        RequestFailedError: MALFORMED, if this type of document has no text.
    """
    if body.lstrip()[:5] == b"%PDF-":
        return "pdf"
    name = content_type.split(";")[0].strip().lower()
    if name in _KINDS:
        return _KINDS[name]
    if name.startswith("text/") or name in _PLAIN_TYPES or name.endswith(("+json", "+xml")):
        return "plain"
    raise RequestFailedError(FailureKind.MALFORMED, f"content of type {name[:60]!r} cannot be read as text")


def charset_of(content_type: str) -> str:
    """The charset in a content type; "" if there is none."""
    for part in content_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")[:40]
    return ""


class DocumentReader:
    """Reads documents. Its processes start on demand, and are replaced when they hang or die."""

    def __init__(self, *, max_chars: int = 50_000, seconds: float = 10.0, processes: int = 2) -> None:
        """Processes start with the first document.

        Args:
            max_chars: Most characters of a text; the rest is cut.
            seconds: Limit for one document, both wall time and CPU time.
            processes: Most documents that are read at the same time.
        """
        self._max_chars, self._seconds = max_chars, seconds
        self._threads = ThreadPoolExecutor(processes, "documents")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._live: set[_Worker] = set()

    async def read(self, kind: Kind, charset: str, body: bytes) -> Document:
        """Title and text of a document.

        Raises:
            RequestFailedError: MALFORMED (broken), TIMEOUT, TOO_LARGE (reading it took too much time or memory).
        """
        request = {
            "kind": kind,
            "charset": charset,
            "max_chars": self._max_chars,
            "cpu_seconds": max(1, round(self._seconds)),
            "size": len(body),
        }
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._ask, request, body)
        if "failed" not in answer:
            return Document(answer["title"], answer["text"])
        kind_of_failure = FailureKind.TOO_LARGE if answer.get("spent") else FailureKind.MALFORMED
        raise RequestFailedError(kind_of_failure, answer["failed"])

    async def close(self) -> None:
        """End the processes; closing twice is allowed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in tuple(self._live):
            worker.kill()
        await asyncio.to_thread(self._threads.shutdown)
        for worker in tuple(self._live):
            self._end(worker)

    def _ask(self, request: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Ask an idle worker, or a new one. Runs in a thread; there are as many threads as processes."""
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = _Worker()
            self._live.add(worker)
        answer = worker.ask(request, body, self._seconds)
        if answer is None:
            self._end(worker)
            raise RequestFailedError(
                FailureKind.TIMEOUT, f"the document could not be read in {self._seconds:g} s"
            )
        self._idle.put(worker)
        return answer

    def _end(self, worker: "_Worker") -> None:
        worker.end()
        self._live.discard(worker)


class _Worker:
    """One process, which reads one document at a time."""

    def __init__(self) -> None:
        self._fresh = True
        try:
            program = seccomp_program(1)
        except (ImportError, RuntimeError):  # it cannot be compiled here
            program = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", "-X", "utf8", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # None of our environment, so no keys; a fixed hash seed, so that equal documents give equal texts.
            env={"PYTHONHASHSEED": "0"},
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # if it has died already, `ask` notices
            self._process.stdin.write(base64.b64encode(program) + b"\n")

    def ask(self, request: dict[str, Any], body: bytes, seconds: float) -> dict[str, Any] | None:
        """The answer, or None if the process died or hung; one that hangs is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # One second more than the CPU limit, which ends it with a reason. The first request also waits for imports.
        clock = threading.Timer(seconds + 1.0 + (_START_SECONDS if self._fresh else 0.0), self.kill)
        clock.daemon = True
        clock.start()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.write(body)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            return None
        finally:
            clock.cancel()
        self._fresh = False
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def kill(self) -> None:
        """Kill the process and its forks."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self.kill()
        with contextlib.suppress(OSError):
            self._process.communicate()
