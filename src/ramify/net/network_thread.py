"""A thread with its own event loop, for reading HTTP responses.

Reading HTTP is Python code, and a response in many tiny chunks can keep it busy for seconds. In a thread of its own it
does not block the caller's event loop, and a timeout measures the network rather than how busy the caller is.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

_PATIENCE_SECONDS: Final = 1.0


class NetworkThread:
    """Runs coroutines for the tasks of another event loop. A daemon thread starts with the first coroutine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the thread; returns or raises what it does. Cancelling this cancels `work`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def close(self) -> None:
        """Give running work one second to finish, cancel the rest, and end the thread; closing twice is allowed."""
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
