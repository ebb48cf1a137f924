"""What the trajectories of a step are waiting for, in words."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class WaitBoard:
    """Counts the waits that are under way, by what they are for."""

    def __init__(self) -> None:
        self._since: dict[str, dict[int, float]] = {}
        self._next = 0

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Wait for `what` within the block."""
        self._next += 1
        ticket = self._next
        group = self._since.setdefault(what, {})
        group[ticket] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del group[ticket]

    def describe(self, now: float) -> str:
        """One short line, "engine 12, search 3 (9 s)", with the age of the oldest wait from a second on."""
        parts = []
        for what, group in sorted(self._since.items()):
            if group:
                age = now - min(group.values())
                parts.append(f"{what} {len(group)}" + (f" ({age:.0f} s)" if age >= 1 else ""))
        return ", ".join(parts)
