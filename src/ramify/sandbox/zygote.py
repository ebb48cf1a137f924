"""The zygote: a clean process that forks one jailed child for each snippet. Standard library only.

It starts with an empty environment, speaks frames (`frames`) on standard input and output, and ends, with all its
children, when its input ends.

The first frame gives the level, the limits, the seccomp program and the folder that contains the snippets' folders.
Each later frame is a request, {"id", "timeout", "num_cells", "mark"} with the program as body, or {"id", "cancel"}.
The zygote sends an answer (`calls.Call.answer`) with the output as body; at level 0 {"id", "pid"} precedes it. A request
that finds no free folder gets {"id", "waiting"}, and {"id", "begun"} once it has one. After a folder could not be
emptied, new requests get {"id", "unserved"}.

At level 0 nothing stops a snippet from killing its zygote. So there each zygote serves one snippet, and {"id", "pid"}
lets the caller kill what remains. A snippet that moves a grandchild to another session and then kills its zygote leaves
the grandchild behind: level 0 guards against accidents only.
"""

import base64
import contextlib
import fcntl
import gc
import os
import select
import signal
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

from ramify.sandbox import fork_hooks, frames, namespaces, snippet
from ramify.sandbox.calls import Birth, Call, Stream, end_orphans
from ramify.sandbox.folders import Slot, Slots
from ramify.sandbox.frames import SealedBuffer
from ramify.sandbox.jail import Jail, Limits, volunteer_when_memory_ends
from ramify.sandbox.kernel import JailError, Landlock
from ramify.sandbox.warmup import hide_ramify, preload, rehearse, use_huge_pages

_LAST_SECONDS = 10


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


def main() -> None:
    """Run the zygote on standard input and output."""
    incoming, outgoing = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.environ.clear()
    settings = frames.read_head(incoming)
    if settings is None:
        return
    try:
        jail, slots = _prepare(settings)
    except (JailError, OSError, ImportError) as error:
        os.write(outgoing, frames.encode({"ready": False, "reason": str(error)}))
        return
    hide_ramify()
    if settings["level"] > 0:
        rehearse(settings["packages"]["modules"])
    names = snippet.prepare()
    gc.disable()
    gc.collect()
    if settings["level"] > 0:
        use_huge_pages()
    gc.freeze()
    server = Server(jail, slots, incoming, outgoing)
    birth = server.serve()
    if birth is None:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        signal.alarm(_LAST_SECONDS)  # if a child cannot die
        server.kill_all()
        slots.remove()
        return
    _become_child(birth, jail, names)


def _prepare(settings: Mapping[str, Any]) -> tuple[Jail, Slots]:
    """Set up everything that all snippets share, including the limits that they inherit from this process.

    Raises:
        JailError, OSError: A protection that the level promises failed.
    """
    level, limits = settings["level"], Limits(**settings["limits"])
    packages = settings["packages"]
    fork_hooks.stop_postponing(register=level == 0)
    volunteer_when_memory_ends()
    if level == 3:
        namespaces.enter(packages["folders"], settings["num_slots"], limits.folder_bytes)
    elif level == 4:
        namespaces.furnish(settings["num_slots"], limits.folder_bytes)
    if level > 0 or packages["modules"]:
        preload(packages["modules"], packages["paths"])
    landlock = None
    if level >= 2:
        readable = (*namespaces.readable(()), *packages["folders"], *namespaces.devices())
        landlock = Landlock(readable, namespaces.installed())
    slots = Slots(settings["base"], settings["num_slots"], landlock)
    if landlock is not None:
        landlock.close()
    return Jail(level, limits, base64.b64decode(settings["seccomp"])), slots


def _become_child(birth: Birth, jail: Jail, names: dict[str, Any]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        if jail.level == 0:  # from level 1 on a child cannot fork, and no fork hooks have reseeded
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            snippet.seed()
        os.setsid()
        os.dup2(birth.stdout, 1)
        os.dup2(birth.stderr, 2)
        os.chdir(birth.slot.folder.descriptor)
        try:
            jail.enter(birth.slot.rules, birth.processor_seconds, birth.zygote)
        except (JailError, OSError) as error:
            os.write(2, f"killed: the sandbox could not be set up: {error}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.closerange(3, 1 << 16)
        with birth.body.used as body:
            code, cells = frames.programs(body)
        snippet.run(code, cells, birth.mark, names)
    finally:
        os._exit(1)
