"""Extracting the text of fetched documents, in separate processes with limits on time and memory."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ramify.net.failures import FailureKind, RequestFailedError
from ramify.runtime.call_clock import slot_of
from ramify.runtime.limited_process import Ending, LimitedProcesses, Limits, UnansweredError
from ramify.sandbox.levels import seccomp_program

Kind: TypeAlias = Literal["html", "pdf", "plain"]
_MEMORY_BYTES: Final = 2 << 30
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
    """Return the kind of a document, from its content type; a body that begins like a PDF is a PDF in any case.

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
    """Return the charset in a content type; "" if there is none."""
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
        try:
            system_calls = seccomp_program(1)
        except (ImportError, RuntimeError):  # it cannot be compiled here
            system_calls = b""
        limits = Limits(
            cpu_seconds=seconds,
            memory_bytes=_MEMORY_BYTES,
            answer_bytes=12 * max_chars + 8192,  # a character is at most 12 bytes of JSON; and the title
            wall_seconds=seconds + 1.0,  # more than CPU time, which is the better reason
        )
        self._processes = LimitedProcesses(
            "ramify.tools.document_worker", limits, processes=processes, system_calls=system_calls
        )
        self._max_chars = max_chars
        self._slots = asyncio.Semaphore(processes)
        self._threads = ThreadPoolExecutor(processes, "documents")

    async def read(self, kind: Kind, charset: str, body: bytes) -> Document:
        """Return title and text of a document.

        Raises:
            RequestFailedError: MALFORMED (broken), TIMEOUT, TOO_LARGE (reading it took too much time or memory).
        """
        request = {"kind": kind, "charset": charset, "max_chars": self._max_chars}
        loop = asyncio.get_running_loop()
        try:
            # Many pages come at a time; a deadline of theirs does not count the wait for a process.
            async with slot_of(self._slots):
                answer = await loop.run_in_executor(self._threads, self._processes.ask, request, body)
        except UnansweredError as error:
            is_late = error.ending in (Ending.WALL_TIME, Ending.KILLED)
            failure = FailureKind.TIMEOUT if is_late else FailureKind.TOO_LARGE
            raise RequestFailedError(failure, f"the document cannot be read: {error}") from None
        if "failed" in answer:
            raise RequestFailedError(FailureKind.MALFORMED, answer["failed"])
        return Document(answer["title"], answer["text"])

    async def close(self) -> None:
        """End the processes; closing twice is allowed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._processes.close()
        await asyncio.to_thread(self._threads.shutdown)
        self._processes.close()  # for one that a thread has just started
