"""Single flight: identical requests that are pending at the same time share one call."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from ramify.core.protocols import Json


class Flights:
    """Pending calls, by what they ask for.

    Each call is a task of its own. It goes on when its waiters are cancelled, since its answer may be paid for.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Json]] = {}

    async def join(self, name: Hashable, start: Callable[[], Awaitable[Json]]) -> Json:
        """The answer of the pending call `name`; if there is none, of `start`. Its error reaches all who wait."""
        task = self._tasks.get(name)
        if task is None or task.get_loop().is_closed():  # a task of a closed loop would never end
            task = asyncio.ensure_future(_run(start))
            self._tasks[name] = task
            task.add_done_callback(lambda done: self._landed(name, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel all pending calls."""
        tasks = [task for task in self._tasks.values() if not task.get_loop().is_closed()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, name: Hashable, task: asyncio.Task[Json]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled():
            task.exception()  # Marks it as retrieved: asyncio does not log it if all waiters are gone.


async def _run(start: Callable[[], Awaitable[Json]]) -> Json:
    return await start()
