"""A server with what the engine knows about it, and the task that keeps it: brings it up, watches it, brings it back.

    STARTING --(answers, woken, has the step's weights)--> AWAKE --(sleep, verified)--> ASLEEP --(next rollout)--> STARTING
    AWAKE --(went down)--> STARTING --(did not come back)--> LOST <--(does not sleep, answers wrongly)-- AWAKE

`_enter` alone changes the state.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol, TypeVar

from ramify.core.errors import EngineError, RamifyError, ServiceDownError
from ramify.engines.vllm.answers import GenerateRequest, GenerateResponse
from ramify.engines.vllm.process import ServerProcess
from ramify.engines.vllm.routing import CachedPrefixes
from ramify.engines.vllm.server import VllmServer
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.runtime.progress import ProgressNotes, duration

POLL_SECONDS = 0.5
"""Between two looks at a server that is starting or down."""
WATCH_SECONDS = 5.0
"""Between two looks at a server that is answering requests."""
HEALTH_SECONDS = 30.0
"""A server that does not answer /health, /sleep or /wake_up within this time hangs; a busy one takes seconds."""
_MOST_STARTS = 3
"""A process that ends so often before it is ready will not start."""
_MOST_CHANGES = 3
"""Failed attempts to put a server to sleep, or to wake it, after which it is started again or given up."""
_MOST_WRONG = 3
"""Wrong answers after which a server is given up. A sound server gives none; a proxy before it may give one."""

Value = TypeVar("Value")


class ServerState(StrEnum):
    """The state of a server, as far as the engine has verified it."""

    STARTING = "starting"
    """It is down, starts, or gets its weights."""
    AWAKE = "awake"
    """It takes requests."""
    ASLEEP = "asleep"
    """It holds no memory for weights, because it sleeps or because its process was ended."""
    LOST = "lost"
    """It was given up."""


class Checks(Protocol):
    """The engine's demands on a server; both requests raise RequestFailedError if it does not answer as it should."""

    async def prepare(self, replica: "Replica") -> None:
        """Check a server that has just answered, and give it the weights of this step."""
        ...

    async def check(self, replica: "Replica") -> None:
        """Return if it is healthy and has the weights of this step."""
        ...

    def changed(self) -> None:
        """Receive that a server changed its state."""
        ...


class LostServerError(Exception):
    """A server went down while it answered a request; another one, or the same later, can answer it."""


class _NotAwakeError(RequestFailedError):
    """A server did not wake up."""


class Replica:
    """One of the engine's servers.

    Attributes:
        server: The server.
        process: The process that ramify started; None if the server was given by its address.
        state: What it is doing.
        prefixes: Contexts that it has cached.
        in_flight: Requests that it is answering.
        label: Label of its weights; None: not known.
        needs_weights: It slept, or a hand-over to it failed: its weights are not those of its label.
        failed: Why it was given up; None: it was not.
        handing_over: Held while weights are loaded.
    """

    def __init__(
        self,
        server: VllmServer,
        process: ServerProcess | None,
        *,
        slots: int,
        patience_seconds: float,
        wakes: bool = False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """A server that counts as down until `keep` has brought it up.

        Args:
            server: The server.
            process: Its process, if ramify starts it.
            slots: Most requests for tokens that it is sent at a time; further ones wait here.
            patience_seconds: How long it may take to start, or to come back.
            wakes: It gets new weights, so one that sleeps or is paused as it comes up is woken: a run that was killed leaves such.
            note: Receives a line when it goes down and when it is back.
        """
        self.server, self.process = server, process
        self._slots = asyncio.Semaphore(slots)
        self._patience, self._wakes, self._note = patience_seconds, wakes, note
        self.state = ServerState.STARTING
        self.prefixes = CachedPrefixes()
        self.in_flight = 0
        self.label: str | None = None
        self.needs_weights = False
        self.failed: RamifyError | None = None
        self.handing_over = asyncio.Lock()
        self._down = asyncio.Event()
        self._down.set()
        self._suspected = asyncio.Event()
        self._wrong_answers = 0
        self._has_been_up = self._is_missed = False

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url

    @property
    def is_up(self) -> bool:
        """True while it takes requests."""
        return self.state is ServerState.AWAKE

    def _enter(self, state: ServerState) -> None:
        self.state = state
        if state is ServerState.AWAKE:
            self._suspected.clear()
            self._down.clear()
            self._wrong_answers = 0
        else:
            self._down.set()
            self.prefixes.clear()

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """Count a request while the block runs."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Have the server write tokens as soon as it has a slot; raises as `while_up` and `VllmServer.generate` do."""
        return await self.while_up(self._generate(request))

    async def _generate(self, request: GenerateRequest) -> GenerateResponse:
        # Where another server is down this one may get all requests, and its client has room for few more than the slots: behind
        # all of them a look at its health would come too late, and it would count as hanging.
        async with self._slots:
            return await self.server.generate(request)

    async def while_up(self, work: Awaitable[Value]) -> Value:
        """Return what `work` returns.

        Raises:
            LostServerError: The server went down meanwhile; `work` was cancelled.
        """
        task, down = asyncio.ensure_future(work), asyncio.ensure_future(self._down.wait())
        try:
            await asyncio.wait({task, down}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise LostServerError
        finally:
            down.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, RequestFailedError):
                    await task

    def suspect(self) -> None:
        """Have it looked at now: a request failed."""
        self._suspected.set()

    def count_wrong_answer(self, detail: str) -> None:
        """Count an answer that is none to its request; a server that gives several is given up."""
        self._wrong_answers += 1
        if self._wrong_answers >= _MOST_WRONG and self.failed is None:
            self.failed = EngineError(f"engine 'vllm': {detail}")
            self._enter(ServerState.LOST)
            self._suspected.set()

    async def keep(self, checks: Checks) -> None:
        """Bring the server up, watch it, and bring it back, until it is given up or this is cancelled."""
        try:
            while True:
                self._enter(ServerState.STARTING)
                seconds = await self._come_up(checks)
                self._enter(ServerState.AWAKE)
                if self._is_missed:
                    self._note(f"engine 'vllm': {self.url} is back after {seconds:.0f} s")
                self._has_been_up, self._is_missed = True, False
                checks.changed()
                reason = await self._went_down(checks)
                if self.failed is not None:  # a wrong answer came meanwhile
                    raise self.failed
                self._missed(reason)
                checks.changed()
        except RamifyError as error:
            self._give_up(error)
            checks.changed()

    def _missed(self, reason: str) -> None:
        self._enter(ServerState.STARTING)
        self._is_missed = True
        self._note(
            f"engine 'vllm': {self.url} is down ({reason}); its requests wait, or go to another server"
        )

    def _give_up(self, error: RamifyError) -> None:
        self.failed = error
        self._enter(ServerState.LOST)
        if self.process is not None:
            self.process.kill()

    async def _went_down(self, checks: Checks) -> str:
        """Wait until the server is down; return the reason.

        Raises:
            RamifyError: It was given up meanwhile.
        """
        while True:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes as the event is set.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._suspected.wait()
            if self.failed is not None:
                raise self.failed
            if not self._suspected.is_set() and not self.in_flight:
                continue
            self._suspected.clear()
            async with self.handing_over:
                if self.process is not None and self.process.has_ended:
                    return "its process has ended"
                try:
                    async with asyncio.timeout(HEALTH_SECONDS):
                        await checks.check(self)
                except TimeoutError:
                    if self.process is not None:
                        self.process.kill()
                    return f"it does not answer within {HEALTH_SECONDS:g} s"
                except RequestFailedError as failure:
                    return failure.detail

    async def _come_up(self, checks: Checks) -> float:
        """Wait until the server is awake and prepared, starting its process if that has ended; return the seconds.

        Raises:
            ServiceDownError: It did not come up in time, or refuses the key.
            EngineError: It did not come back in time, or does not wake.
            RamifyError: It is not what the recipe asks for.
        """
        began = time.monotonic()
        reason, starts, wakes = "it did not answer", 0, 0
        waited_for = f"engine 'vllm': waiting for {self.url}, which may take {duration(self._patience)}"
        progress = ProgressNotes(self._note, waited_for, round(self._patience))
        while (seconds := time.monotonic() - began) < self._patience:
            progress.reach(round(seconds))
            if self.process is not None and self.process.has_ended:
                starts += 1
                if starts > 1:
                    reason = self.process.why_it_ended()
                if starts > _MOST_STARTS:
                    break
                self.process.start()
            failure = await self._ready(checks)
            if failure is None:
                return seconds
            if isinstance(failure, _NotAwakeError):
                wakes, reason = wakes + 1, failure.detail
                if not self._may_still_wake(wakes, reason):
                    break
            elif not failure.kind.retriable:
                reason = failure.detail
                break
            elif self.process is None:
                reason = failure.detail
            await asyncio.sleep(POLL_SECONDS)
        raise self._not_up(seconds, reason)

    def _not_up(self, seconds: float, reason: str) -> RamifyError:
        log = "" if self.process is None else f"; its log is {self.process.log}"
        if self._has_been_up:
            return EngineError(
                f"engine 'vllm': {self.url} did not come back in {seconds:.0f} s ({reason}){log}"
            )
        return ServiceDownError(f"engine: {self.url} did not come up in {seconds:.0f} s ({reason}){log}")

    async def _ready(self, checks: Checks) -> RequestFailedError | None:
        """Check, wake and prepare the server once; return the failure, if any."""
        try:
            await self.within_limit(self.server.health())
            if self._wakes:
                await self._wake()
            await checks.prepare(self)
        except RequestFailedError as failure:
            if failure.kind is FailureKind.REFUSED:
                raise ServiceDownError(
                    f"engine.key_variable: {self.url} refuses the key ({failure.detail})"
                ) from None
            return failure
        return None

    async def _wake(self) -> None:
        """Wake it if it sleeps. It is always asked: a /sleep or /wake_up that failed may have acted all the same."""
        try:
            if not await self.within_limit(self.server.is_asleep()):
                return
            self.needs_weights = True
            await self.within_limit(self.server.wake())
            if await self.within_limit(self.server.is_asleep()):
                raise RequestFailedError(FailureKind.SERVER, f"{self.url} sleeps after /wake_up")
        except RequestFailedError as failure:
            raise _NotAwakeError(failure.kind, failure.detail, failure.status) from None

    def _may_still_wake(self, failures: int, reason: str) -> bool:
        """Return True if another attempt makes sense; a process that does not wake is ended, and started again."""
        if failures == _MOST_CHANGES and self.process is not None:
            self._note(f"engine 'vllm': {self.url} does not wake ({reason}); it is started again")
            self.process.kill()
        return failures < _MOST_CHANGES * (1 if self.process is None else 2)

    async def sleep(self) -> None:
        """Have it hand back its memory, while nothing keeps it.

        This never raises, since a step's trees are in the caller's hands. A server that does not sleep is ended if ramify
        started it (it starts again for the next rollout), and is given up if not.
        """
        if self.state is ServerState.STARTING and self.process is not None:
            # In the middle of a start it would take the memory that the learner needs now.
            self.process.kill()
            self._enter(ServerState.ASLEEP)
        if self.state is not ServerState.AWAKE:
            return
        failure = await self._fall_asleep()
        for _ in range(_MOST_CHANGES - 1):
            # One that hangs would do so again, while the learner waits.
            if failure is None or failure.kind is FailureKind.TIMEOUT:
                break
            await asyncio.sleep(POLL_SECONDS)
            failure = await self._fall_asleep()
        if failure is None:
            self._enter(ServerState.ASLEEP)
        elif self.process is not None:
            self.process.kill()
            self._enter(ServerState.ASLEEP)
            self._note(
                f"engine 'vllm': {self.url} does not sleep ({failure.detail}). Its process was ended, and starts again for "
                "the next rollout."
            )
        elif await self.is_healthy():
            self._give_up(EngineError(f"engine 'vllm': {self.url} does not sleep: {failure.detail}"))
        else:
            self._missed(failure.detail)

    async def is_healthy(self) -> bool:
        """Return True if it answers in time that it is healthy."""
        try:
            await self.within_limit(self.server.health())
        except RequestFailedError:
            return False
        return True

    async def _fall_asleep(self) -> RequestFailedError | None:
        """Put it to sleep once; return the failure, if any."""
        try:
            await self.within_limit(self.server.sleep())
            # Only after a /sleep that succeeded: a paused server says that it sleeps.
            if await self.within_limit(self.server.is_asleep()):
                return None
        except RequestFailedError as failure:
            return failure
        return RequestFailedError(FailureKind.SERVER, f"{self.url} is awake after /sleep")

    async def within_limit(self, work: Awaitable[Value]) -> Value:
        """Return what `work` returns; RequestFailedError if that takes too long."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                return await work
        except TimeoutError:
            raise RequestFailedError(
                FailureKind.TIMEOUT, f"{self.url} does not answer within {HEALTH_SECONDS:g} s"
            ) from None

    async def close(self) -> None:
        """Free connections, and end the process."""
        await self.server.close()
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)
