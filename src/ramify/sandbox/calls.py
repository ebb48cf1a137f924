"""The zygote's record of a running child: its output, its limits, its outcome, and its end. Standard library only."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.sandbox.folders import Slot
from ramify.sandbox.frames import SealedBuffer

_FLOOD_FACTOR = 16
_ORPHAN_SECONDS = 2.0


class Stream:
    """A buffer with the head of an output stream, or with the tail of standard error.

    The stream should begin with `num_expected` marks, which are counted and dropped. If something else breaks their
    sequence, all output is dropped.
    """

    def __init__(
        self, buffer: SealedBuffer, limit: int, keep_tail: bool, mark: bytes = b"", num_expected: int = 0
    ) -> None:
        self.buffer, self.limit = buffer, limit
        self.num_bytes = self.num_marks = 0
        self._mark, self._num_expected = mark, num_expected
        self._matched = 0
        self._is_broken = False
        self._keep_tail = keep_tail

    def add(self, data: memoryview) -> None:
        """Add a chunk of output."""
        self.num_bytes += len(data)
        while self.num_marks < self._num_expected and data:
            part = self._mark[self._matched : self._matched + len(data)]
            self._is_broken |= data[: len(part)] != part
            if self._is_broken:
                return
            data = data[len(part) :]
            self.num_bytes -= len(part)
            self._matched = (self._matched + len(part)) % len(self._mark)
            self.num_marks += self._matched == 0
        if self._keep_tail:
            data = data[-self.limit :]
            self.buffer.drop(max(0, self.buffer.num_bytes + len(data) - self.limit))
        self.buffer.add(data[: self.limit - self.buffer.num_bytes])

    @property
    def flooded(self) -> bool:
        """True if the program wrote so much that it should be killed."""
        return self.num_bytes > _FLOOD_FACTOR * self.limit


@dataclass(slots=True)
class Call:
    """A running child: its deadline, its standard output and error, and the reason if it was killed.

    `limit` is the size of each stream's buffer in bytes.
    """

    id: int
    slot: Slot
    deadline: float
    streams: tuple[Stream, Stream]
    limit: int
    num_cells: int
    pid: int = 0
    reason: str | None = None

    def answer(self, kind: str, note: str) -> dict[str, Any]:
        """Return the head of the answer's frame; the buffers of the two streams are the body."""
        stdout, stderr = self.streams
        return {
            "id": self.id,
            "status": kind,
            "note": note,
            "folder": self.slot.folder.path,
            "limit": self.limit,
            "num_cells": self.num_cells,
            "num_marks": stdout.num_marks,
            "stdout_kept": stdout.buffer.num_bytes,
            "stdout_bytes": stdout.num_bytes,
            "stderr_bytes": stderr.num_bytes,
        }

    def outcome(self, status: int) -> tuple[str, str]:
        """Return the result's status for an exit status (negative: a signal), and a note to add to standard error."""
        if self.reason == "timeout" or status == -signal.SIGXCPU:
            return "timeout", ""
        if self.reason == "flood":
            return "killed", f"killed: more than {_FLOOD_FACTOR * self.limit} bytes of output"
        if status < 0:
            return "killed", f"killed by {signal.Signals(-status).name}"
        return ("error" if status else "ok"), ""


@dataclass(frozen=True, slots=True)
class Birth:
    """The inputs of a new child; `body` and `mark` come from its request."""

    body: SealedBuffer
    mark: str
    slot: Slot
    processor_seconds: tuple[int, int]
    stdout: int
    stderr: int
    zygote: int


def end_orphans() -> None:
    """Kill and reap all descendants of this process, for a bounded time.

    All are stopped first, until no new ones appear. If they were killed one by one, the others would continue to fork.
    """
    stopped: set[int] = set()
    end = time.monotonic() + _ORPHAN_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        running = _descendants()
        if not running:
            return
        for pid in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if running <= stopped else signal.SIGSTOP)
        stopped = running
        time.sleep(0.001)


def _descendants() -> set[int]:
    descendants: set[int] = set()
    pending = [os.getpid()]
    while pending:
        pid = pending.pop()
        with contextlib.suppress(OSError):
            children = {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
            pending.extend(children - descendants)
            descendants |= children
    return descendants
