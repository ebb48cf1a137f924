"""A zygote as its parent sees it: one process and its pending calls."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.call_clock import CallClock, current_clock
from ramify.sandbox import frames, launch
from ramify.sandbox.folders import Folder
from ramify.sandbox.levels import seccomp_program

Frame: TypeAlias = tuple[Mapping[str, Any], bytes]
"""Head and body."""

_GRACE_SECONDS = 5.0
_STOP_SECONDS = 5.0


@dataclass(slots=True)
class _Pending:
    """A call: its future answer (None if the zygote died), and its clock, which stops while the call waits for a folder."""

    answer: asyncio.Future[Frame | None]
    clock: CallClock
    waits: bool = False

    def wait_for_folder(self, waits: bool) -> None:
        """Stop the clock, or restart it."""
        if waits != self.waits:
            self.waits = waits
            (self.clock.enter_queue if waits else self.clock.leave_queue)()

    def end(self, frame: Frame | None) -> None:
        """Set the answer, unless it is set or the caller has given up."""
        if not self.answer.done():
            self.answer.set_result(frame)


class ZygoteProcess:
    """A zygote process; it belongs to the event loop on which it was started.

    `dead`: the process has ended. `retired`: it takes no new calls, but finishes the pending ones.
    """

    def __init__(self, start: launch.Start) -> None:
        self._start = start
        self._place = launch.new_place() if start.needs_base else None
        self._base: Folder | None = None
        # Not asyncio's subprocess: if that is cancelled while it starts bubblewrap, the process stays behind.
        self._process: subprocess.Popen[bytes] | None = None
        self._outgoing: asyncio.WriteTransport | None = None
        self._incoming = asyncio.StreamReader()
        self._reader: asyncio.Task[None] | None = None
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count()
        self._child: int | None = None
        self.dead = self.retired = False

    async def start(self) -> None:
        """Create the folder, start the process and wait until it is ready. The caller must `stop` it, even after an error.

        Raises:
            OSError: The process could not be started.
            EOFError: The process ended at once, or could not set up its jail.
            JailError: The level needs a program that is missing.
        """
        if self._place is not None:
            Path(self._place).mkdir(mode=0o700)
            self._base = Folder(self._place)
        self._process = subprocess.Popen(
            self._start.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=launch.ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        loop = asyncio.get_running_loop()
        self._outgoing, _ = await loop.connect_write_pipe(asyncio.Protocol, self._process.stdin)
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._incoming), self._process.stdout
        )
        settings = self._start.settings(seccomp_program(self._start.level), self._place)
        self._send(frames.encode(settings))
        ready, _ = await self._receive()
        if not ready["ready"]:
            raise EOFError(ready["reason"])
        self._reader = asyncio.create_task(self._deal_out())

    @property
    def is_busy(self) -> bool:
        """Whether a call is pending."""
        return bool(self._pending)

    async def run(
        self, code: str, timeout_seconds: float, cells: Sequence[str], mark: str = ""
    ) -> Frame | None:
        """Run one program. Returns the zygote's answer, or None if the zygote died.

        The answer {"unserved"} means that another zygote must run it. A zygote that does not answer within a grace
        period after the time limit is killed. The wait for a folder does not count, since emptying one can take long.
        """
        if self.dead:
            return None
        identifier, clock = next(self._ids), current_clock()
        answer: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
        ends = clock.own + timeout_seconds + _GRACE_SECONDS
        pending = self._pending[identifier] = _Pending(answer, clock)
        try:
            self._send(frames.request(identifier, code, timeout_seconds, cells, mark))
            if await clock.wait((answer,), ends):
                return answer.result()
            self._die()
            return None
        except asyncio.CancelledError:
            self._send(frames.encode({"id": identifier, "cancel": True}))
            raise
        finally:
            self._pending.pop(identifier, None)
            pending.wait_for_folder(False)

    async def stop(self) -> None:
        """End the process and everything it started, and remove its folder; stopping twice is allowed."""
        if self._process is not None:
            if self._outgoing is not None:
                self._outgoing.close()
            elif self._process.stdin is not None:
                self._process.stdin.close()
            await self._wait_for_end(self._process)
            self._die()
            await self._wait_for_end(self._process)
        if self._base is not None:
            base, self._base = self._base, None
            await asyncio.to_thread(base.remove)
        elif self._place is not None:
            with contextlib.suppress(OSError):  # never created, or already removed
                Path(self._place).rmdir()

    async def _wait_for_end(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the process and its last answers, for a bounded time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, _STOP_SECONDS)
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=_STOP_SECONDS)

    async def _deal_out(self) -> None:
        """Pass each answer to the call that waits for it, until the zygote ends."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                head, body = await self._receive()
                if "pid" in head:
                    self._child = head["pid"]
                    continue
                call = self._pending.get(head["id"])
                if "waiting" in head or "begun" in head:
                    if call is not None:
                        call.wait_for_folder("waiting" in head)
                    continue
                self._child = None
                self.retired |= "unserved" in head
                if call is not None:
                    call.end((head, body))
        self._die()

    def _die(self) -> None:
        """Kill the zygote and thereby all its children; pending calls get None."""
        self.dead = True
        if self._process is not None:
            self._process.kill()
        if self._child is not None:
            # At level 0 a program can kill its zygote and live on.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
            self._child = None
        for call in self._pending.values():
            call.end(None)

    def _send(self, frame: bytes) -> None:
        assert self._outgoing is not None
        if not self._outgoing.is_closing():
            self._outgoing.write(frame)

    async def _receive(self) -> Frame:
        incoming = self._incoming
        head_bytes, body_bytes = frames.lengths(await incoming.readexactly(frames.PREFIX_BYTES))
        return frames.decode(await incoming.readexactly(head_bytes)), await incoming.readexactly(body_bytes)
