"""Which trajectories may start while the engine has fewer slots than a step has trajectories."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from ramify.rollout.turn import BranchKey


class Start(IntEnum):
    """The way in which a trajectory begins, in the order in which slots are given.

    The engine still has the tokens before a branch. A root may branch, so more is to follow it. A top-up can wait.
    """

    BRANCH = 0
    ROOT = 1
    TOP_UP = 2

    @classmethod
    def of(cls, key: BranchKey | None) -> "Start":
        """Return the start of the trajectory with this place in the order of grants."""
        if key is None:
            return cls.TOP_UP
        return cls.ROOT if len(key) == 1 else cls.BRANCH


TakeSlot: TypeAlias = Callable[[Start], AbstractAsyncContextManager[None]]
"""Waits until the engine has a slot for a trajectory, which holds it while the block runs."""


class SlotGate:
    """Lets trajectories start while the engine has a slot for each, by what they begin as, then in the order of their trees.

    A trajectory holds its slot until it ends, also while it waits for a tool: its tokens stay in the engine. A tree begins
    with its first slot, so that one that waits holds no environment.
    """

    def __init__(self, slots: int | None) -> None:
        self._free = slots
        self._waiting: list[tuple[Start, int, int, asyncio.Future[None]]] = []
        self._places = count()

    @asynccontextmanager
    async def tree(self, order: int, roots: int) -> AsyncIterator[TakeSlot]:
        """Ask for the slots of a tree's first roots, and wait for one; yields what takes a slot for a trajectory."""
        of_roots = deque(self._ask(Start.ROOT, order) for _ in range(roots))

        @asynccontextmanager
        async def trajectory(start: Start) -> AsyncIterator[None]:
            slot = of_roots.popleft() if of_roots and start is Start.ROOT else self._ask(start, order)
            try:
                await slot
                yield
            finally:
                # Later, so that what the end of a trajectory starts has asked before.
                asyncio.get_running_loop().call_soon(self._give_back, slot)

        try:
            await of_roots[0]
            yield trajectory
        finally:
            for slot in of_roots:
                self._give_back(slot)

    def _ask(self, start: Start, order: int) -> "asyncio.Future[None]":
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._free is None:
            slot.set_result(None)
        elif self._free:
            self._free -= 1
            slot.set_result(None)
        else:
            heappush(self._waiting, (start, order, next(self._places), slot))
        return slot

    def _give_back(self, slot: "asyncio.Future[None]") -> None:
        """Give a slot to the next who waits; one that was not given yet is not waited for any more."""
        if slot.cancel() or slot.cancelled() or self._free is None:
            return
        while self._waiting:
            *_, following = heappop(self._waiting)
            if not following.done():
                following.set_result(None)
                return
        self._free += 1
