"""The agent's event loop, in a thread of its own, so that it serves tools and deadlines while the main thread computes.

It measures how long it was blocked, and Ctrl-C and SIGTERM stop what runs in it without losing anything.
"""

import asyncio
import gc
import selectors
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ramify.core.errors import RunInterruptedError
from ramify.runtime.call_clock import EventLoopLag

NOTICEABLE_SECONDS = 0.005
"""An iteration of the loop that takes longer than this blocks everything else noticeably."""


@dataclass(slots=True)
class LoopDelays:
    """Time for which the event loop was blocked: a callback ran, or another thread occupied the interpreter.

    `seconds` is the total since the loop was created.
    """

    seconds: float = 0.0
    _taken: float = 0.0
    _longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count an iteration that took, or started late by, `seconds`."""
        if seconds >= NOTICEABLE_SECONDS:
            self.seconds += seconds
            self._longest = max(self._longest, seconds)

    def take(self) -> EventLoopLag:
        """Return the blocked time since the last call of this method."""
        lag = EventLoopLag(self.seconds - self._taken, self._longest)
        self._taken, self._longest = self.seconds, 0.0
        return lag


class _TimedSelector(selectors.DefaultSelector):
    """Measures the time between two waits, which is the time of the callbacks, and how late a wait ends."""

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
    """An asyncio loop that measures how long it was blocked."""

    def __init__(self) -> None:
        self.delays = LoopDelays()
        super().__init__(_TimedSelector(self.delays))


def seconds_held_up() -> float:
    """Return the seconds for which the running event loop has been blocked so far; 0 for a loop that does not measure it."""
    loop = asyncio.get_running_loop()
    return loop.delays.seconds if isinstance(loop, TimedEventLoop) else 0.0


Result = TypeVar("Result")

PATIENCE_SECONDS = 5.0
"""Time that the end of a loop waits for cancelled tasks."""


class AgentLoop:
    """Runs coroutines in its thread for callers in other threads.

    Attributes:
        delays: Time for which the event loop was blocked.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="ramify-agent", daemon=True)
        self._thread.start()
        self._started.result()

    @property
    def is_current(self) -> bool:
        """True in the loop's own thread, which cannot wait for it."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the loop; return or raise what it does. The calling thread receives signals meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def freeze_objects(self) -> None:
        """Exclude all objects that exist now from garbage collection until `end`.

        With torch and transformers loaded, collecting them takes 0.2 to 0.4 s, during which nothing else runs.
        """
        gc.collect()
        gc.freeze()

    def cancel(self, task: "asyncio.Task[Any]") -> None:
        """Cancel a task of the loop from another thread."""
        self._loop.call_soon_threadsafe(task.cancel)

    def end(self, patience_seconds: float) -> None:
        """Cancel the running tasks, wait for them, and end the thread.

        If a task does not end in time, the loop ends with the process.
        """
        gc.unfreeze()
        if self.run(self._end_tasks(patience_seconds)):
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
        else:
            # The policy has long read these calls as timeouts.
            self.end_with_process()

    def end_with_process(self) -> None:
        """Have asyncio say nothing about tasks that are destroyed unfinished, because the process ends."""
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

    async def _end_tasks(self, seconds: float) -> bool:
        """Cancel every other task; return True if all of them ended in time."""
        others = asyncio.all_tasks() - {asyncio.current_task(), self._main}
        for task in others:
            abandon(task)
        if not others:
            return True
        _, pending = await asyncio.wait(others, timeout=seconds)
        return not pending


def abandon(task: "asyncio.Task[Any]") -> None:
    """Cancel a task without waiting for it, and ignore how it ends."""
    if task.cancel():
        task.add_done_callback(_forget)
    else:
        _forget(task)


def _forget(ended: "asyncio.Task[Any]") -> None:
    """Retrieve the task's result, so that asyncio does not log it as never retrieved."""
    ended.cancelled() or ended.exception()


@contextmanager
def agent_loop(patience_seconds: float = PATIENCE_SECONDS) -> Iterator[AgentLoop]:
    """Run a loop for the duration of the block; at its end wait at most `patience_seconds` for cancelled tasks.

    asyncio's own shutdown waits for ever, so a single call that ignores its cancellation would keep the process alive.
    """
    loop = AgentLoop()
    try:
        yield loop
    finally:
        loop.end(patience_seconds)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals of a terminal, and of a cluster before it takes the machine away."""


class StopOnSignal:
    """While this is entered, SIGINT and SIGTERM ask the run to stop; a coroutine under `run` is cancelled at once.

    A signal that came behind the last safe point is raised at the end of the block.

    Off the main thread the handlers stay as they are: Python lets only the main thread set them.
    """

    def __init__(self, loop: AgentLoop | None = None) -> None:
        """Prepare to handle signals; `run` runs coroutines in `loop`."""
        self._loop = loop
        self._number: int | None = None
        self._task: asyncio.Task[Any] | None = None
        self._previous: dict[int, Any] = {}
        self._has_stopped = False

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore_handlers()
        if error is None and self._number is not None and not self._has_stopped:
            raise RunInterruptedError(self._number)

    def check(self) -> None:
        """Mark a point at which the run can stop safely.

        Raises:
            RunInterruptedError: A signal has arrived.
        """
        if self._number is not None:
            self._has_stopped = True
            raise RunInterruptedError(self._number)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the agent's loop to its end, or until a signal arrives.

        Raises:
            RunInterruptedError: A signal arrived; the coroutine was cancelled.
        """

        async def watched() -> Result:
            self._task = task = asyncio.current_task()
            assert task is not None
            if self._number is not None:  # the signal came before there was a task to cancel
                task.cancel()
            try:
                return await work
            finally:
                self._task = None

        assert self._loop is not None
        try:
            return self._loop.run(watched())
        except CancelledError:
            self.check()
            raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._number = number
        # A second signal has its default effect.
        self._restore_handlers()
        if self._loop is not None and self._task is not None:
            self._loop.cancel(self._task)

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
