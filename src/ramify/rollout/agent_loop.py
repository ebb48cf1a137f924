"""The agent's event loop, in its own thread, so that it serves tools and deadlines while the main thread computes."""

import asyncio
import gc
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from ramify.rollout.asking import abandon
from ramify.rollout.event_loop import TimedEventLoop

Result = TypeVar("Result")

PATIENCE_SECONDS = 5.0
"""How long the end of a loop waits for tasks that were cancelled."""


class AgentLoop:
    """Runs coroutines in its thread for callers in other threads.

    Attributes:
        delays: How long the event loop was blocked.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="ramify-agent", daemon=True)
        self._thread.start()
        self._started.result()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the loop; return or raise what it does. The calling thread receives signals meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def settle(self) -> None:
        """Exclude all objects that exist now from garbage collection until `end`.

        With torch and transformers loaded, collecting them takes 0.2 to 0.4 s, during which nothing else runs.
        """
        gc.collect()
        gc.freeze()

    def cancel(self, task: "asyncio.Task[Any]") -> None:
        """Cancel a task of the loop from another thread."""
        self._loop.call_soon_threadsafe(task.cancel)

    def end(self, patience_seconds: float) -> None:
        """Cancel the tasks that still run, wait for them, and end the thread.

        If a task does not end in time, the loop is left as it is and ends with the process.
        """
        gc.unfreeze()
        if self.run(self._all_end(patience_seconds)):
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
        else:
            # asyncio reports tasks that are destroyed unfinished; the policy has long read these calls as timeouts.
            self._loop.set_exception_handler(lambda _loop, _context: None)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=TimedEventLoop) as runner:
            runner.run(self._until_ended())

    async def _until_ended(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimedEventLoop)
        self._loop, self.delays = loop, loop.delays
        self._ended = asyncio.Event()
        self._main = asyncio.current_task()
        self._started.set_result(None)
        await self._ended.wait()

    async def _all_end(self, seconds: float) -> bool:
        """Cancel every other task; returns whether all of them ended in time."""
        others = asyncio.all_tasks() - {asyncio.current_task(), self._main}
        for task in others:
            abandon(task)
        if not others:
            return True
        _, pending = await asyncio.wait(others, timeout=seconds)
        return not pending


@contextmanager
def agent_loop(patience_seconds: float = PATIENCE_SECONDS) -> Iterator[AgentLoop]:
    """A loop for the duration of the block; at its end it waits at most `patience_seconds` for cancelled tasks.

    asyncio's own shutdown waits for ever, so a single call that ignores its cancellation would keep the process alive.
    """
    loop = AgentLoop()
    try:
        yield loop
    finally:
        loop.end(patience_seconds)
