"""The part of a zygote that serves requests: it forks the children, reads their output, and ends them. Standard library only."""

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.sandbox import frames
from ramify.sandbox.folders import Slot, Slots
from ramify.sandbox.frames import SealedBuffer
from ramify.sandbox.jail import Jail

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


class Server:
    """Serves requests until its input ends."""

    def __init__(self, jail: Jail, slots: Slots, incoming: int, outgoing: int) -> None:
        self.jail = jail
        self._slots = slots
        self._incoming, self._outgoing = incoming, outgoing
        self._inbox, self._outbox = frames.Inbox(incoming), frames.Outbox(outgoing)
        self._chunk = SealedBuffer(1 << 16)
        self._queue: deque[tuple[dict[str, Any], SealedBuffer]] = deque()
        self._calls: dict[int, Call] = {}
        self._streams: dict[int, tuple[Call, Stream]] = {}
        self._poll = select.poll()
        self._wake = self._watch_children()
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)
        self._poll.register(incoming, select.POLLIN)
        self._send({"ready": True})

    def serve(self) -> Birth | None:
        """Serve requests. Returns None in the zygote at the end, and a `Birth` in each child."""
        while True:
            for head, body in self._inbox.take():
                self._handle(head, body)
            if self._slots.lost:
                self._refuse_waiting()
            while self._queue and self._slots.free:
                birth = self._start(*self._queue.popleft(), self._slots.free.pop())
                if birth is not None:
                    return birth
            for descriptor, _ in self._poll.poll(self._milliseconds_left()):
                if not self._advance(descriptor):
                    return None
            self._kill_expired()

    def kill_all(self) -> None:
        """Kill every child."""
        for pid in self._calls:
            os.kill(pid, signal.SIGKILL)
        end_orphans()

    def _advance(self, descriptor: int) -> bool:
        """Handle a ready descriptor; False at the end of the input."""
        if descriptor == self._incoming:
            return self._inbox.read()
        if descriptor == self._outgoing:
            return self._flush()
        if descriptor == self._wake:
            os.read(descriptor, 1 << 10)
            self._reap()
        elif descriptor in self._streams:
            self._read(descriptor)
        return True

    def _handle(self, head: dict[str, Any], body: SealedBuffer) -> None:
        if "timeout" in head:
            head["waits"] = len(self._queue) >= len(self._slots.free)
            if head["waits"]:
                self._send({"id": head["id"], "waiting": True})
            self._queue.append((head, body))
            return
        self._queue = deque(waiting for waiting in self._queue if waiting[0]["id"] != head["id"])
        for call in self._calls.values():
            if call.id == head["id"]:
                self._kill(call, "cancel")

    def _refuse_waiting(self) -> None:
        """Refuse queued requests, so that a new zygote with all its folders takes them; running calls finish here."""
        while self._queue:
            head, body = self._queue.popleft()
            body.free()
            self._send({"id": head["id"], "unserved": True})

    def _start(self, head: Mapping[str, Any], body: SealedBuffer, slot: Slot) -> Birth | None:
        if head["waits"]:
            self._send({"id": head["id"], "begun": True})
        # Do as much as possible before the fork: while the child lives, both sides copy each page that they write to.
        (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
        processor_seconds = self.jail.processor_seconds(head["timeout"])
        birth = Birth(body, head["mark"], slot, processor_seconds, out_write, err_write, os.getpid())
        call = self._call(head, slot)
        for descriptor, stream in zip((out_read, err_read), call.streams, strict=True):
            os.set_blocking(descriptor, False)
            self._streams[descriptor] = (call, stream)
            self._poll.register(descriptor, select.POLLIN)
        body.show_to_next_child()
        try:
            call.pid = os.fork()
        except OSError as error:
            for descriptor in (out_read, err_read):
                self._close(descriptor)
            for descriptor in (out_write, err_write):
                os.close(descriptor)
            self._slots.release(slot)
            self._answer(call, "killed", f"killed: no process could be started: {error.strerror}")
            return None
        if call.pid == 0:
            return birth
        self._calls[call.pid] = call
        os.close(out_write)
        os.close(err_write)
        body.free()
        if self.jail.level == 0:
            self._send({"id": call.id, "pid": call.pid})
        return None

    def _call(self, head: Mapping[str, Any], slot: Slot) -> Call:
        limit = self.jail.limits.output_bytes
        spare = self._outbox.spare
        buffers = [spare.pop() if spare else SealedBuffer(limit) for _ in range(2)]
        num_cells = head["num_cells"]
        num_expected = num_cells + 1 if num_cells else 0
        streams = (
            Stream(buffers[0], limit, False, head["mark"].encode(), num_expected),
            Stream(buffers[1], limit, keep_tail=True),
        )
        deadline = time.monotonic() + head["timeout"]
        return Call(head["id"], slot, deadline, streams, limit, num_cells)

    def _read(self, descriptor: int) -> bool:
        """Read one chunk; False if there is nothing more for now."""
        call, stream = self._streams[descriptor]
        self._chunk.clear()
        try:
            ended = self._chunk.read_from(descriptor) == 0
        except BlockingIOError:
            return False
        if ended:
            self._close(descriptor)
            return False
        with self._chunk.used as data:
            stream.add(data)
        if stream.flooded:
            self._kill(call, "flood")
            self._close(descriptor)
            return False
        return True

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._streams[descriptor]
        os.close(descriptor)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._calls:
                self._finish(pid, status)
            else:
                self._slots.cleaner_ended(pid)

    def _finish(self, pid: int, status: int) -> None:
        call = self._calls.pop(pid)
        if self.jail.level == 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            end_orphans()
        # By owner: an ended stream is closed already, and its descriptor number may now belong to another call.
        for descriptor in [key for key, (owner, _) in self._streams.items() if owner is call]:
            while self._read(descriptor):
                pass
            if descriptor in self._streams:
                self._close(descriptor)
        self._slots.release(call.slot)
        if call.reason != "cancel":
            self._answer(call, *call.outcome(os.waitstatus_to_exitcode(status)))

    def _kill_expired(self) -> None:
        now = time.monotonic()
        for call in self._calls.values():
            if call.reason is None and call.deadline <= now:
                self._kill(call, "timeout")

    def _kill(self, call: Call, reason: str) -> None:
        call.reason = call.reason or reason
        if call.pid in self._calls:  # else the child is gone, and `_finish` is reading the rest of its output
            os.kill(call.pid, signal.SIGKILL)

    def _milliseconds_left(self) -> float | None:
        deadlines = [call.deadline for call in self._calls.values() if call.reason is None]
        return max(0.0, 1e3 * (min(deadlines) - time.monotonic())) + 1 if deadlines else None

    def _answer(self, call: Call, kind: str, note: str) -> None:
        self._send(call.answer(kind, note), *(stream.buffer for stream in call.streams))

    def _send(self, head: Mapping[str, Any], *bodies: SealedBuffer) -> None:
        self._outbox.add(head, *bodies)
        self._flush()

    def _flush(self) -> bool:
        """Write as much as the reader takes now; False if the reader is gone."""
        try:
            self._outbox.write()
        except BrokenPipeError:
            return False
        if not self._outbox.is_empty:
            self._poll.register(self._outgoing, select.POLLOUT)
        else:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._outgoing)
        return True

    def _watch_children(self) -> int:
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._poll.register(read, select.POLLIN)
        return read


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
