"""The sandbox as the rest of ramify sees it: concurrent calls over two zygotes; at level 0, one zygote per call.

One zygote has only the standard library, the other also numpy, mpmath and sympy. Each is started when a program first
needs it, and restarted when it has died.
"""

import asyncio
import os
from collections.abc import Sequence

from ramify.core.call_clock import place_in, queued
from ramify.core.errors import MachineError
from ramify.core.protocols import SandboxResult, SandboxStatus
from ramify.sandbox import launch, snippet
from ramify.sandbox.jail import Limits
from ramify.sandbox.kernel import JailError, forbid_inspection
from ramify.sandbox.launch import Packages, everything, mentioned, read_answer, scientific
from ramify.sandbox.levels import MAX_LEVEL, detect_level, shortfall
from ramify.sandbox.zygote_process import ZygoteProcess

_MAX_CODE_CHARS = 1 << 20
_START_SECONDS = 60.0


def open_sandbox(
    min_level: int, max_level: int = MAX_LEVEL, limits: Limits | None = None
) -> "ProcessSandbox":
    """A sandbox of the highest level that this machine reaches, at most `max_level`.

    It starts its processes at the first call, and belongs to the event loop of that call. From now on the user's other
    programs cannot inspect this process (`kernel.forbid_inspection`).

    Raises:
        MachineError: The machine reaches less than `min_level`.
    """
    reached = detect_level(max_level)
    if reached < min_level:
        raise MachineError(shortfall(min_level, reached))
    forbid_inspection()
    return ProcessSandbox(reached, limits or Limits())


class ProcessSandbox:
    """Implements `ramify.core.protocols.Sandbox` with child processes."""

    def __init__(self, level: int, limits: Limits) -> None:
        self._level = level
        self._limits = limits
        self._most = 2 * (os.cpu_count() or 1)
        self._zygotes: dict[Packages, asyncio.Task[ZygoteProcess]] = {}
        self._running = asyncio.Semaphore(self._most)
        self._live: set[ZygoteProcess] = set()

    @property
    def level(self) -> int:
        """The isolation level."""
        return self._level

    async def run(self, code: str, timeout_seconds: float, cells: Sequence[str] = ()) -> SandboxResult:
        """Run one program, after `cells` if there are any. The value of a final bare expression is printed.

        The time limit covers the cells and the program, but not the wait for a free slot. Cancelling kills the program.

        Raises:
            MachineError: No sandbox process could be started.
        """
        if len(code) + sum(map(len, cells)) > _MAX_CODE_CHARS:
            what = "the program is" if not cells else "the program and those before it are"
            note = f"killed: {what} longer than {_MAX_CODE_CHARS} characters"
            return SandboxResult(SandboxStatus.KILLED, "", note, self._level)
        names = mentioned(code, cells)
        async with place_in(self._running):
            return await self._run(code, timeout_seconds, cells, names)

    async def _run(
        self, code: str, timeout_seconds: float, cells: Sequence[str], names: frozenset[str]
    ) -> SandboxResult:
        if self._level == 0:
            with queued():
                zygote = await self._start(scientific(names) if names else Packages(), 1)
            try:
                result = await self._ask(zygote, code, timeout_seconds, cells)
                assert result is not None  # a new zygote is not retired
                return result
            finally:
                await asyncio.shield(self._stop(zygote))
        while True:
            with queued():
                zygote = await self._shared_zygote(everything() if names else Packages())
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
        """The result, or None if the zygote takes no more calls."""
        mark = snippet.new_mark() if cells else ""
        answer = await zygote.run(code, timeout_seconds, cells, mark)
        if answer is None:
            await self._stop(zygote)
            note = "killed: the sandbox process died"
            return SandboxResult(SandboxStatus.KILLED, "", note, self._level)
        return None if "unserved" in answer[0] else read_answer(*answer, self._level, mark)

    async def _shared_zygote(self, packages: Packages) -> ZygoteProcess:
        task = self._zygotes.get(packages)
        if task is None or _is_over(task):
            task = asyncio.create_task(self._start(packages, self._most))
            self._zygotes[packages] = task
        # Other calls wait for this start too, so cancelling one call must not cancel it.
        return await asyncio.shield(task)

    async def _start(self, packages: Packages, num_slots: int) -> ZygoteProcess:
        zygote = ZygoteProcess(launch.Start(self._level, self._limits, num_slots, packages))
        self._live.add(zygote)
        try:
            await asyncio.wait_for(zygote.start(), _START_SECONDS)
        except (TimeoutError, OSError, EOFError, JailError) as error:
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
    """Whether a zygote could not be started, has died, or takes no more calls."""
    if not start.done():
        return False
    return start.cancelled() or start.exception() is not None or start.result().dead or start.result().retired
