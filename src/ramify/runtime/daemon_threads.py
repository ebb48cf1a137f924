"""Threads for blocking functions: limited in number and abandoned when they are late, or waited for in any case.

A thread cannot be stopped. One of `DaemonThreads` whose caller has stopped waiting is abandoned: another one replaces it, and it does
not keep the process alive at exit.
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ramify.core.errors import MachineError
from ramify.runtime.call_clock import queued

Value = TypeVar("Value")

MOST_LATE = 256
"""Most abandoned threads that may still run; if there are more, the function is broken."""


@dataclass(eq=False)
class Job(Generic[Value]):
    """An action to run; `begun` is done when a thread takes it, `future` when it has really ended."""

    action: Callable[[], Value]
    begun: "Future[None]" = field(default_factory=Future)
    future: "Future[Value]" = field(default_factory=Future)
    is_late: bool = False

    def run(self) -> None:
        """Run the action in this thread."""
        try:
            value = self.action()
        except StopIteration as error:
            # No future of asyncio takes it, so the waiter would wait for ever; a coroutine raises the same in its place.
            self.future.set_exception(RuntimeError(f"it raised StopIteration: {error}".rstrip(": ")))
        # The waiter gets the error. Nothing may end the thread before the job's end is recorded.
        except BaseException as error:  # noqa: BLE001
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


async def to_its_end(function: Callable[..., Value], *arguments: object) -> Value:
    """Run a function in a thread; a task that is cancelled meanwhile ends after it.

    For files that whoever stops the task removes next.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])
        # Looked at, or asyncio prints a traceback of it.
        _ = thread.cancelled() or thread.exception()
        raise


class DaemonThreads:
    """At most `limit` threads, not counting abandoned ones; further jobs are queued."""

    def __init__(self, name: str, limit: int) -> None:
        """Start no thread yet; `name` begins each message, and names the threads."""
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[Job[Any]] = deque()
        self._working = 0
        self._running_late = 0
        self._late = 0

    @property
    def late(self) -> int:
        """Number of jobs that were abandoned while they ran."""
        return self._late

    def submit(self, action: Callable[[], Value]) -> Job[Value]:
        """Run `action` as soon as a thread is free, with the context variables of the caller.

        Raises:
            MachineError: Too many abandoned threads are still running, or the system cannot start a thread.
        """
        context = contextvars.copy_context()
        job: Job[Value] = Job(lambda: context.run(action))
        with self._lock:
            if self._running_late >= MOST_LATE:
                raise MachineError(
                    f"{self._name}: {self._running_late} calls still run long after their deadline. Fix the function, "
                    "or give it time limits of its own."
                )
            self._waiting.append(job)
            self._start()
        return job

    async def result(self, job: Job[Value]) -> Value:
        """Return or raise what the job does. Cancelling removes the job from the queue, or abandons its thread."""
        try:
            if not job.begun.done():
                with queued():
                    # Shielded: the thread that takes the job reports to it even if the caller no longer waits.
                    await asyncio.shield(asyncio.wrap_future(job.begun))
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._abandon(job)
            raise

    def _abandon(self, job: Job[Any]) -> None:
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
                job.future.cancel()
            elif not job.future.done():
                job.is_late = True
                self._late += 1
                self._running_late += 1
                self._working -= 1
                self._start()

    def _start(self) -> None:
        """Start a thread for the next job, unless the limit is reached."""
        if self._working >= self._limit:
            return
        job = self._next()
        if job is None:
            return
        thread = threading.Thread(target=self._work, args=(job,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise MachineError(f"{self._name}: the system starts no more threads: {error}") from None
        self._working += 1

    def _next(self) -> Job[Any] | None:
        """Take the first job in the queue that was not cancelled."""
        while self._waiting:
            job = self._waiting.popleft()
            if job.future.set_running_or_notify_cancel():
                job.begun.set_result(None)
                return job
        return None

    def _work(self, job: Job[Any] | None) -> None:
        while job is not None:
            job.run()
            with self._lock:
                if job.is_late:
                    self._running_late -= 1
                    return
                job = self._next()
                if job is None:
                    self._working -= 1
