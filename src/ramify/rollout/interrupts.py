"""Ctrl-C and SIGTERM that lose nothing: the first stops the run at the next safe point, a second one ends it at once."""

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ramify.core.errors import Interrupted

Result = TypeVar("Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What a terminal sends, and what a cluster sends before it takes the machine away."""


class StopOnSignal:
    """While entered, SIGINT and SIGTERM ask the run to stop; what runs in `run` is cancelled at once."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._number: int | None = None
        self._task: asyncio.Task[Any] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        self._previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def check(self) -> None:
        """A safe point.

        Raises:
            Interrupted: A stop was asked for.
        """
        if self._number is not None:
            raise Interrupted(self._number)

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
            self.check()
            raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._number = number
        # A second one does what it would have done without us.
        self._give_back()
        if self._task is not None:
            self._runner.get_loop().call_soon_threadsafe(self._task.cancel)

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
