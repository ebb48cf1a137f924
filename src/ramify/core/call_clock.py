"""The time that a tool call takes itself.

A deadline is a statement about the tool. While a call waits in a queue of ours (for a sandbox process, a free
connection, a thread), or while our own event loop was held up, its clock stands still.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

_SHORTEST_WAIT = 1e-6
"""Seconds below which nothing is left: a clock of floating point numbers may not reach its goal exactly."""


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Seconds for which an event loop could serve nobody: in all, and the longest time running."""

    seconds: float
    longest: float

    @property
    def is_noticeable(self) -> bool:
        """Whether tools and servers waited so long that somebody should know."""
        return self.longest > 0.02


def _never() -> float:
    return 0.0


class CallClock:
    """Measures one call from its making on.

    Args:
        now: Seconds that only grow, the event loop's.
        held_up: Seconds that the event loop has been held up so far, on the same clock.
    """

    def __init__(self, now: Callable[[], float], held_up: Callable[[], float] = _never) -> None:
        self._now, self._held_up = now, held_up
        self._own = self._in_queue = self._late = 0.0
        self._queues = 0
        self._since, self._held_before = now(), held_up()

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
        """Seconds in which the call was in no queue and the event loop was held up."""
        self._count()
        return self._late

    def enter_queue(self) -> None:
        """The call waits for its turn. Queues may lie within queues."""
        self._count()
        self._queues += 1

    def leave_queue(self) -> None:
        """It goes on, if this was the outermost queue."""
        self._count()
        self._queues -= 1

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
    """That of the call which runs here; a fresh one where nobody measures."""
    return _CURRENT.get() or CallClock(asyncio.get_running_loop().time)


def set_clock(clock: CallClock) -> None:
    """Make `clock` that of the task which calls this."""
    _CURRENT.set(clock)


@contextmanager
def queued() -> Iterator[None]:
    """Within the block the call that runs here waits for its turn."""
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
async def place_in(semaphore: asyncio.Semaphore) -> AsyncIterator[None]:
    """Hold one of the semaphore's places; the wait for it is time in a queue."""
    with queued():
        await semaphore.acquire()
    try:
        yield
    finally:
        semaphore.release()
