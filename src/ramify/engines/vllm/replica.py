"""A server with what the engine knows about it, and the task that keeps it: brings it up, watches it, brings it back."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from ramify.core.errors import EngineError, RamifyError, ServiceDownError
from ramify.engines.vllm.process import ServerProcess
from ramify.engines.vllm.routing import CachedPrefixes
from ramify.engines.vllm.server import VllmServer
from ramify.net.failures import FailureKind, RequestFailedError

POLL_SECONDS = 0.5
"""Between two looks at a server that is starting or down."""
WATCH_SECONDS = 5.0
"""Between two looks at a server that is answering requests."""
HEALTH_SECONDS = 30.0
"""A server that does not say within this time that it is healthy hangs; a busy one takes seconds."""
_MOST_STARTS = 3
"""A process that ends so often before it is ready will not start."""

Value = TypeVar("Value")


class Checks(Protocol):
    """What the engine wants of a server; both raise RequestFailedError if it does not answer as it should."""

    async def prepare(self, replica: "Replica") -> None:
        """Check a server that has just answered, and give it the weights of this step."""
        ...

    async def check(self, replica: "Replica") -> None:
        """Return if it is healthy and has the weights of this step."""
        ...

    def changed(self) -> None:
        """A server came up, went down or was given up."""
        ...


class LostServerError(Exception):
    """A server went down while it answered a request; another one, or the same later, can answer it."""


class Replica:
    """One of the engine's servers.

    Attributes:
        server: The server.
        process: What ramify started; None if the server was given by its address.
        prefixes: What it has cached.
        in_flight: Requests that it is answering.
        label: Label of the weights that it has.
        failed: Why it was given up; None: it was not.
        handing_over: Held while weights are loaded.
    """

    def __init__(
        self,
        server: VllmServer,
        process: ServerProcess | None,
        *,
        patience_seconds: float,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """A server that counts as down until `keep` has brought it up.

        Args:
            server: The server.
            process: What ramify started, if it did.
            patience_seconds: How long it may take to start, or to come back.
            note: Receives a line when it goes down and when it is back.
        """
        self.server, self.process = server, process
        self._patience, self._note = patience_seconds, note
        self.prefixes = CachedPrefixes()
        self.in_flight = 0
        self.label: str | None = None
        self.failed: RamifyError | None = None
        self.handing_over = asyncio.Lock()
        self._down = asyncio.Event()
        self._down.set()
        self._suspected = asyncio.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url

    @property
    def is_up(self) -> bool:
        """Whether it takes requests."""
        return not self._down.is_set()

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """Count a request while the block runs."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def while_up(self, work: Awaitable[Value]) -> Value:
        """What `work` returns.

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

    async def keep(self, checks: Checks) -> None:
        """Bring the server up, watch it, and bring it back, until it is given up or this is cancelled."""
        has_been_up = False
        try:
            while True:
                seconds = await self._come_up(checks, again=has_been_up)
                self._suspected.clear()
                self._down.clear()
                if has_been_up:
                    self._note(f"engine 'vllm': {self.url} is back after {seconds:.0f} s")
                has_been_up = True
                checks.changed()
                why = await self._went_down(checks)
                self._down.set()
                self.prefixes.clear()
                self._note(
                    f"engine 'vllm': {self.url} is down ({why}); its requests wait, or go to another server"
                )
                checks.changed()
        except RamifyError as error:
            self._down.set()
            self.failed = error
            checks.changed()

    async def _went_down(self, checks: Checks) -> str:
        """Wait until the server is down; returns why."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._suspected.wait(), WATCH_SECONDS)
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
                except RequestFailedError as failed:
                    return failed.detail

    async def _come_up(self, checks: Checks, *, again: bool) -> float:
        """Wait until the server answers and is prepared, starting its process if that has ended; returns the seconds.

        Raises:
            ServiceDownError: It did not come up in time, or refuses the key.
            EngineError: It did not come back in time.
            RamifyError: It is not what the recipe asks for.
        """
        began = time.monotonic()
        last, starts = "it did not answer", 0
        while (seconds := time.monotonic() - began) < self._patience:
            if self.process is not None and self.process.has_ended:
                starts += 1
                if starts > 1:
                    last = self.process.why_it_ended()
                if starts > _MOST_STARTS:
                    break
                self.process.start()
            failure, may_pass = await self._readied(checks)
            if failure is None:
                return seconds
            last = failure if self.process is None else last
            if not may_pass:
                break
            await asyncio.sleep(POLL_SECONDS)
        where = "" if self.process is None else f"; its log is {self.process.log}"
        if not again:
            raise ServiceDownError(f"engine: {self.url} did not come up in {seconds:.0f} s ({last}){where}")
        raise EngineError(f"engine 'vllm': {self.url} did not come back in {seconds:.0f} s ({last}){where}")

    async def _readied(self, checks: Checks) -> tuple[str | None, bool]:
        """Why the server is not ready (None: it is), and whether that may pass."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await self.server.health()
            await checks.prepare(self)
        except TimeoutError:
            return f"it does not answer within {HEALTH_SECONDS:g} s", True
        except RequestFailedError as failed:
            if failed.kind is FailureKind.REFUSED:
                raise ServiceDownError(
                    f"engine.key_variable: {self.url} refuses the key ({failed.detail})"
                ) from None
            return failed.detail, failed.kind.retriable
        return None, True

    async def close(self) -> None:
        """Free connections, and end the process."""
        await self.server.close()
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)
