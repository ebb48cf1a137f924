"""Notes about slow work of a part that has no phase of its own on the console: how far it is, and the time left."""

import time
from collections.abc import Callable

FIRST_SECONDS, NEXT_SECONDS = 10.0, 60.0
"""Time before the first note, and between two."""


class ProgressNotes:
    """Counts work of a known size; `note` gets a line now and then: "NAME: 34 % after 5:00 min, 10:00 min left"."""

    def __init__(
        self, note: Callable[[str], None], name: str, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._note, self._name, self._total, self._clock = note, name, total, clock
        self._began = clock()
        self._next = self._began + FIRST_SECONDS
        self._first: int | None = None

    def reach(self, done: int, before: int = 0) -> None:
        """Count `before + done` as done so far; what the first call brings was there before and says nothing about the pace."""
        done += before
        if self._first is None:
            self._first = done
        now = self._clock()
        if now < self._next or not self._total:
            return
        self._next = now + NEXT_SECONDS
        seconds, fresh = now - self._began, done - self._first
        left = f", {duration(seconds * (self._total - done) / fresh)} left" if fresh > 0 else ""
        self._note(f"{self._name}: {done / self._total:.0%} after {duration(seconds)}{left}")


def duration(seconds: float) -> str:
    """Return a duration such as "42 s", "3:05 min" or "2:10 h"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
