"""A thread with an event loop for what servers send.

Reading HTTP is Python code: an answer of many tiny parts keeps it busy for seconds. In a thread that time is shared with the
caller's event loop, and what a deadline measures here is the network, not how busy the caller is.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

_PATIENCE_SECONDS: Final = 1.0


class NetworkThread:
    """Runs coroutines for the tasks of one other event loop. The thread starts with the first, and does not keep the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What `work` returns or raises over there; cancelling cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def close(self) -> None:
        """End the thread, and what still runs in it some time later; closing twice is allowed."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_all_end(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _all_end() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=_PATIENCE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
