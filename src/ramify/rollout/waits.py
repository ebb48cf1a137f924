"""What trajectories wait for: counted for the console, and limited so that none loses its slot in the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager


class WaitBoard:
    """Counts the current waits, by what they wait for."""

    def __init__(self) -> None:
        self._since: dict[str, dict[int, float]] = {}
        self._next = 0

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count a wait for `what` while the block runs."""
        self._next += 1
        ticket = self._next
        group = self._since.setdefault(what, {})
        group[ticket] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del group[ticket]

    @asynccontextmanager
    async def shown(self, show: Callable[[str], None], every_seconds: float = 1.0) -> AsyncIterator[None]:
        """While the block runs, pass a description of the waits to `show` from time to time."""

        async def tick() -> None:
            while True:
                await asyncio.sleep(every_seconds)
                show(self.describe(asyncio.get_running_loop().time()))

        task = asyncio.create_task(tick())
        try:
            yield
        finally:
            task.cancel()

    def describe(self, now: float) -> str:
        """Return one short line, "engine 12, search 3 (9 s)", with the age of the oldest wait if it is at least a second."""
        parts = []
        for what, group in sorted(self._since.items()):
            if group:
                age = now - min(group.values())
                parts.append(f"{what} {len(group)}" + (f" ({age:.0f} s)" if age >= 1 else ""))
        return ", ".join(parts)


class SlotGate:
    """Admits trees, first come first served, while their trajectories fit into the engine's slots.

    A tree holds one slot for each trajectory that has not ended; a tree that is larger than the engine runs alone.
    """

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self._held = 0
        self._freed = asyncio.Event()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def tree(self, trajectories: int) -> AsyncIterator[Callable[[], None]]:
        """Hold `trajectories` slots. The callback returns one of them, the end of the block returns the rest."""
        async with self._turn:
            while not self._fits(trajectories):
                self._freed.clear()
                await self._freed.wait()
            self._held += trajectories
        mine = trajectories

        def give_back() -> None:
            nonlocal mine
            mine -= 1
            self._release(1)

        try:
            yield give_back
        finally:
            self._release(mine)

    def _fits(self, trajectories: int) -> bool:
        return self._slots is None or not self._held or self._held + trajectories <= self._slots

    def _release(self, count: int) -> None:
        self._held -= count
        self._freed.set()
