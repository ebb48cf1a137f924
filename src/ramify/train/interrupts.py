"""Ctrl-C that loses nothing: the first one stops the run at the next safe point, a second one stops at once."""

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ramify.core.errors import Interrupted

Result = TypeVar("Result")


class StopOnCtrlC:
    """While entered, SIGINT asks the run to stop; what runs in `run` is cancelled at once."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._requested = False
        self._task: asyncio.Task[Any] | None = None
        self._previous: Any = None

    def __enter__(self) -> "StopOnCtrlC":
        self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """A safe point.

        Raises:
            Interrupted: A stop was asked for.
        """
        if self._requested:
            raise Interrupted("stopped by Ctrl-C")

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end, or until a stop is asked for.

        Raises:
            Interrupted: A stop was asked for; the coroutine was cancelled.
        """

        async def watched() -> Result:
            self._task = asyncio.current_task()
            try:
                return await work
            finally:
                self._task = None

        try:
            return self._runner.run(watched())
        except asyncio.CancelledError:
            raise Interrupted("stopped by Ctrl-C") from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        if self._task is not None:
            self._runner.get_loop().call_soon_threadsafe(self._task.cancel)
