"""A clock for one tool call that counts only the call's own time.

A deadline limits the tool, not us. While a call waits in one of our queues (for a sandbox process, a free
connection, a thread), or while our own event loop is blocked, its clock stands still.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")

_SHORTEST_WAIT = 1e-6
"""Less than this many seconds left counts as none: a floating-point clock may not reach its goal exactly."""


@dataclass(frozen=True, slots=True)
class EventLoopLag:
    """Seconds for which an event loop was blocked: in total, and the longest single time."""

    seconds: float
    longest: float

    @property
    def is_noticeable(self) -> bool:
        """True if tools and servers waited long enough to report it."""
        return self.longest > 0.02


class CallClock:
    """Measures one call, from the creation of the clock on.

    `counts` is for services that count what they did for the call, such as answers from a cache. `began` is when it was created.

    Args:
        now: The event loop's monotonic clock, in seconds.
        held_up: Seconds for which the event loop has been blocked so far, on the same clock.
    """

    def __init__(self, now: Callable[[], float], held_up: Callable[[], float] = lambda: 0.0) -> None:
        self._now, self._held_up = now, held_up
        self._own = self._in_queue = self._late = 0.0
        self._queues = 0
        self._followers: list[CallClock] = []
        self.counts: Counter[str] = Counter()
        self.began = now()
        self._since, self._held_before = self.began, held_up()

    @property
    def own(self) -> float:
        """Seconds of the call itself."""
        self._count()
        return self._own

    @property
    def queued(self) -> float:
        """Seconds in queues."""
        self._count()
        return self._in_queue

    @property
    def held_up(self) -> float:
        """Seconds in which the event loop was blocked while the call was in no queue."""
        self._count()
        return self._late

    def enter_queue(self) -> None:
        """Stop the clock while the call waits for its turn. Queues may be nested."""
        self._count()
        self._queues += 1
        for clock in self._followers:
            clock.enter_queue()

    def leave_queue(self) -> None:
        """Restart the clock, if this was the outermost queue."""
        self._count()
        self._queues -= 1
        for clock in self._followers:
            clock.leave_queue()

    @contextmanager
    def followed_by(self, clock: "CallClock") -> Iterator[None]:
        """Stop another call's clock within the block while this one stands still: that call waits for what this one measures."""
        for _ in range(self._queues):
            clock.enter_queue()
        self._followers.append(clock)
        try:
            yield
        finally:
            self._followers.remove(clock)
            for _ in range(self._queues):
                clock.leave_queue()

    async def wait(self, futures: "Collection[asyncio.Future[Any]]", seconds: float) -> bool:
        """Wait until one of `futures` is done; False once `own` has reached `seconds`."""
        while True:
            left = seconds - self.own
            if left < _SHORTEST_WAIT:
                return any(future.done() for future in futures)
            done, _ = await asyncio.wait(futures, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return True

    def _count(self) -> None:
        now, held_up = self._now(), self._held_up()
        passed, late = now - self._since, held_up - self._held_before
        self._since, self._held_before = now, held_up
        if self._queues:
            self._in_queue += passed
        else:
            self._own += max(0.0, passed - late)
            self._late += min(passed, late)


_CURRENT: ContextVar[CallClock | None] = ContextVar("ramify_call_clock", default=None)


def current_clock() -> CallClock:
    """Return the clock of the call that runs in this task; a fresh one if there is none."""
    return _CURRENT.get() or CallClock(asyncio.get_running_loop().time)


def set_clock(clock: CallClock) -> None:
    """Make `clock` the clock of the calling task."""
    _CURRENT.set(clock)


async def on_clock(clock: CallClock, ask: Callable[[], Awaitable[Value]]) -> Value:
    """Return what `ask` gives, in a task of its own that `clock` measures."""
    set_clock(clock)
    return await ask()


async def in_own_time(seconds: float, ask: Callable[[], Awaitable[Value]]) -> Value:
    """Return what `ask` gives, if the call that runs in this task takes at most `seconds` of its own time for it.

    Raises:
        TimeoutError: It takes more, and is cancelled.
    """
    clock = current_clock()
    task = asyncio.create_task(on_clock(clock, ask))
    # An outcome that nobody waits for any more is no error of the run.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        if not await clock.wait((task,), clock.own + seconds):
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()


def count_in_call(name: str) -> None:
    """Add 1 to `name` in the counts of the call that runs in this task, if there is one."""
    if (clock := _CURRENT.get()) is not None:
        clock.counts[name] += 1


@contextmanager
def queued() -> Iterator[None]:
    """Count the time within the block as time in a queue, for the call that runs in this task."""
    clock = _CURRENT.get()
    if clock is None:
        yield
        return
    clock.enter_queue()
    try:
        yield
    finally:
        clock.leave_queue()


@asynccontextmanager
async def slot_of(semaphore: asyncio.Semaphore) -> AsyncIterator[None]:
    """Hold one slot of the semaphore; waiting for it counts as time in a queue."""
    with queued():
        await semaphore.acquire()
    try:
        yield
    finally:
        semaphore.release()
