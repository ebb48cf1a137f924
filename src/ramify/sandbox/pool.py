"""The sandbox as the rest of ramify sees it: concurrent calls over two zygotes; at level 0, one zygote per call.

One zygote has only the standard library, the other also numpy, mpmath and sympy; programs of a setup that needs one of these
all use the other. Each is started when a program first
needs it, and restarted when it has died. A `ZygoteProcess` is one of them: the process and its pending calls.
"""

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

from ramify.core.errors import MachineError
from ramify.core.protocols import SandboxResult, SandboxStatus
from ramify.runtime.call_clock import CallClock, current_clock, queued, slot_of
from ramify.sandbox import frames, launch, snippet
from ramify.sandbox.folders import Folder
from ramify.sandbox.jail import Limits
from ramify.sandbox.kernel import JailError, forbid_inspection
from ramify.sandbox.launch import Packages, always_loaded, everything, mentioned, read_answer, scientific
from ramify.sandbox.levels import MAX_LEVEL, detect_level, seccomp_program, shortfall
from ramify.sandbox.program_setup import ProgramSetup

Frame: TypeAlias = tuple[Mapping[str, Any], bytes]
"""Head and body."""

_MAX_CODE_CHARS = 1 << 20
_START_SECONDS = 60.0
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
        """Set the answer, unless it is set or the caller was cancelled."""
        if not self.answer.done():
            self.answer.set_result(frame)


class ZygoteProcess:
    """A zygote process; it belongs to the event loop on which it was started.

    `dead`: the process has ended. `retired`: it takes no new calls, but finishes the pending ones.
    """

    def __init__(self, start: launch.Start) -> None:
        self._start = start
        self._path = launch.new_folder_path() if start.needs_base else None
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
        if self._path is not None:
            Path(self._path).mkdir(mode=0o700)
            self._base = Folder(self._path)
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
        settings = self._start.settings(seccomp_program(self._start.level), self._path)
        self._send(frames.encode(settings))
        ready, _ = await self._receive()
        if not ready["ready"]:
            raise EOFError(ready["reason"])
        self._reader = asyncio.create_task(self._dispatch())

    @property
    def is_busy(self) -> bool:
        """True while a call is pending."""
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
        elif self._path is not None:
            with contextlib.suppress(OSError):  # never created, or already removed
                Path(self._path).rmdir()

    async def _wait_for_end(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the process and its last answers, for a bounded time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, _STOP_SECONDS)
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=_STOP_SECONDS)

    async def _dispatch(self) -> None:
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
            # At level 0 a program can kill its zygote and survive it.
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


def open_sandbox(
    min_level: int,
    max_level: int = MAX_LEVEL,
    limits: Limits | None = None,
    setup: ProgramSetup | None = None,
) -> "ProcessSandbox":
    """Return a sandbox of the highest level that this machine reaches, at most `max_level`.

    It starts its processes at the first call, and belongs to the event loop of that call. From now on the user's other
    programs cannot inspect this process (`kernel.forbid_inspection`). Whether a setup works is `levels.try_setup`'s to say.

    Raises:
        MachineError: The machine reaches less than `min_level`.
    """
    reached = detect_level(max_level)
    if reached < min_level:
        raise MachineError(shortfall(min_level, reached))
    forbid_inspection()
    return ProcessSandbox(reached, limits or Limits(), setup or ProgramSetup())


class ProcessSandbox:
    """Implements `ramify.core.protocols.Sandbox` with child processes."""

    def __init__(self, level: int, limits: Limits, setup: ProgramSetup) -> None:
        self.level = level
        self._limits = limits
        self._setup = setup
        self._always_loaded = always_loaded(setup)
        self._most = 2 * (os.cpu_count() or 1)
        self._zygotes: dict[Packages, asyncio.Task[ZygoteProcess]] = {}
        self._running = asyncio.Semaphore(self._most)
        self._live: set[ZygoteProcess] = set()

    async def run(self, code: str, timeout_seconds: float, cells: Sequence[str] = ()) -> SandboxResult:
        """Run one program, after `cells` if there are any. The value of a final bare expression is printed.

        The time limit covers the cells and the program, but not the wait for a free slot. Cancelling kills the program.

        Raises:
            MachineError: No sandbox process could be started.
        """
        if len(code) + sum(map(len, cells)) > _MAX_CODE_CHARS:
            what = "the program is" if not cells else "the program and those before it are"
            note = f"killed: {what} longer than {_MAX_CODE_CHARS} characters"
            return SandboxResult(SandboxStatus.KILLED, "", note, self.level)
        names = self._always_loaded | mentioned(code, cells)
        async with slot_of(self._running):
            return await self._run(code, timeout_seconds, cells, names)

    async def _run(
        self, code: str, timeout_seconds: float, cells: Sequence[str], names: frozenset[str]
    ) -> SandboxResult:
        if self.level == 0:
            with queued():
                zygote = await self._start(scientific(names, self._setup), 1)
            try:
                result = await self._ask(zygote, code, timeout_seconds, cells)
                assert result is not None  # a new zygote is not retired
                return result
            finally:
                await asyncio.shield(self._stop(zygote))
        while True:
            with queued():
                zygote = await self._shared_zygote(
                    everything(self._setup) if names else scientific(frozenset(), self._setup)
                )
            try:
                result = await self._ask(zygote, code, timeout_seconds, cells)
            finally:
                if zygote.retired and not zygote.is_busy:
                    await asyncio.shield(self._stop(zygote))
            if result is not None:
                return result

    async def close(self) -> None:
        """Kill every program and every zygote, and remove their folders."""
        starting = tuple(self._zygotes.values())
        self._zygotes.clear()
        if starting:
            await asyncio.wait(starting)
        await asyncio.gather(*(self._stop(zygote) for zygote in tuple(self._live)))

    async def _ask(
        self, zygote: ZygoteProcess, code: str, timeout_seconds: float, cells: Sequence[str]
    ) -> SandboxResult | None:
        """Return the result, or None if the zygote takes no more calls."""
        mark = snippet.new_mark() if cells else ""
        answer = await zygote.run(code, timeout_seconds, cells, mark)
        if answer is None:
            await self._stop(zygote)
            note = "killed: the sandbox process died"
            return SandboxResult(SandboxStatus.KILLED, "", note, self.level)
        return None if "unserved" in answer[0] else read_answer(*answer, self.level, mark)

    async def _shared_zygote(self, packages: Packages) -> ZygoteProcess:
        task = self._zygotes.get(packages)
        if task is None or _is_over(task):
            task = asyncio.create_task(self._start(packages, self._most))
            self._zygotes[packages] = task
        # Other calls wait for this start too, so cancelling one call must not cancel it.
        return await asyncio.shield(task)

    async def _start(self, packages: Packages, num_slots: int) -> ZygoteProcess:
        zygote = ZygoteProcess(launch.Start(self.level, self._limits, num_slots, packages))
        self._live.add(zygote)
        try:
            await asyncio.wait_for(zygote.start(), _START_SECONDS)
        except TimeoutError as error:
            await self._stop(zygote)
            hint = " Shorten tools.python.preamble." if self._setup.preamble else ""
            raise MachineError(f"sandbox: no process was ready within {_START_SECONDS:g} s.{hint}") from error
        except (OSError, EOFError, JailError) as error:
            await self._stop(zygote)
            raise MachineError(f"sandbox: no process could be started ({error!r})") from error
        except BaseException:  # cancelled, or a signal
            await asyncio.shield(self._stop(zygote))
            raise
        return zygote

    async def _stop(self, zygote: ZygoteProcess) -> None:
        await zygote.stop()
        self._live.discard(zygote)


def _is_over(start: asyncio.Task[ZygoteProcess]) -> bool:
    """Return True for a zygote that could not be started, has died, or takes no more calls."""
    if not start.done():
        return False
    return start.cancelled() or start.exception() is not None or start.result().dead or start.result().retired
