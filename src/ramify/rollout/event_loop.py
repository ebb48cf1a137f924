"""An event loop that knows how long it was held up, so that deadlines need not count it."""

import asyncio
import selectors
import time
from dataclasses import dataclass

from ramify.core.call_clock import HeldUp

NOTICEABLE_SECONDS = 0.005
"""A turn of the loop that takes longer held up everything else."""


@dataclass(slots=True)
class LoopDelays:
    """How long the event loop was held up, because a callback ran or the interpreter was busy elsewhere.

    `seconds` counts from its beginning.
    """

    seconds: float = 0.0
    _taken: float = 0.0
    _longest: float = 0.0

    def add(self, seconds: float) -> None:
        """A turn of the loop took so long, or began so late."""
        if seconds >= NOTICEABLE_SECONDS:
            self.seconds += seconds
            self._longest = max(self._longest, seconds)

    def take(self) -> HeldUp:
        """What came since the last time that this was asked."""
        held_up = HeldUp(self.seconds - self._taken, self._longest)
        self._taken, self._longest = self.seconds, 0.0
        return held_up


class _TimedSelector(selectors.DefaultSelector):
    """Notes the time from the end of one wait to the beginning of the next: that of the callbacks between them."""

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
    """An asyncio loop that knows how long it was held up."""

    def __init__(self) -> None:
        self.delays = LoopDelays()
        super().__init__(_TimedSelector(self.delays))


def seconds_held_up() -> float:
    """Of the running event loop so far; 0 for one that does not know."""
    loop = asyncio.get_running_loop()
    return loop.delays.seconds if isinstance(loop, TimedEventLoop) else 0.0
