"""Back-pressure: limits the trees in flight, so that none of their trajectories loses its slot in the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


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
