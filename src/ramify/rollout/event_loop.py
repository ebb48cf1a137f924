"""An event loop that measures how long it was blocked, so that deadlines need not count that time."""

import asyncio
import selectors
import time
from dataclasses import dataclass

from ramify.core.call_clock import HeldUp

NOTICEABLE_SECONDS = 0.005
"""An iteration of the loop that takes longer than this blocks everything else noticeably."""


@dataclass(slots=True)
class LoopDelays:
    """How long the event loop was blocked, because a callback ran or another thread kept the interpreter busy.

    `seconds` is the total since the loop was made.
    """

    seconds: float = 0.0
    _taken: float = 0.0
    _longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count an iteration that took, or started late by, `seconds`."""
        if seconds >= NOTICEABLE_SECONDS:
            self.seconds += seconds
            self._longest = max(self._longest, seconds)

    def take(self) -> HeldUp:
        """The blocked time since the last call of this method."""
        held_up = HeldUp(self.seconds - self._taken, self._longest)
        self._taken, self._longest = self.seconds, 0.0
        return held_up


class _TimedSelector(selectors.DefaultSelector):
    """Measures the time between two waits, which is the time of the callbacks, and how late a wait ends."""

    def __init__(self, delays: LoopDelays) -> None:
        super().__init__()
        self._delays = delays
        self._woke = time.monotonic()

    def select(self, timeout: float | None = None) -> "list[tuple[selectors.SelectorKey, int]]":
        began = time.monotonic()
        self._delays.add(began - self._woke)
        ready = super().select(timeout)
        self._woke = time.monotonic()
        if timeout is not None and not ready:
            self._delays.add(self._woke - began - max(timeout, 0.0))
        return ready


class TimedEventLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that measures how long it was blocked."""

    def __init__(self) -> None:
        self.delays = LoopDelays()
        super().__init__(_TimedSelector(self.delays))


def seconds_held_up() -> float:
    """Seconds for which the running event loop has been blocked so far; 0 for a loop that does not measure it."""
    loop = asyncio.get_running_loop()
    return loop.delays.seconds if isinstance(loop, TimedEventLoop) else 0.0
