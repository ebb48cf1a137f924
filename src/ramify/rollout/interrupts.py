"""Ctrl-C and SIGTERM that lose nothing: the first stops the run at the next safe point, a second one ends it at once."""

import asyncio
import signal
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ramify.core.errors import Interrupted
from ramify.rollout.agent_loop import AgentLoop

Result = TypeVar("Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What a terminal sends, and what a cluster sends before it takes the machine away."""


class StopOnSignal:
    """While entered, SIGINT and SIGTERM ask the run to stop; what `run` waits for is cancelled at once."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._awaited: tuple[AgentLoop, asyncio.Task[Any]] | None = None
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

    def run(self, loop: AgentLoop, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in `loop` to its end, or until a stop is asked for.

        Raises:
            Interrupted: A stop was asked for; the coroutine was cancelled.
        """

        async def watched() -> Result:
            task = asyncio.current_task()
            assert task is not None
            self._awaited = (loop, task)
            if self._number is not None:  # asked for before there was a task to cancel
                task.cancel()
            try:
                return await work
            finally:
                self._awaited = None

        try:
            return loop.run(watched())
        except CancelledError:
            self.check()
            raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._number = number
        # A second one does what it would have done without us.
        self._give_back()
        if self._awaited is not None:
            loop, task = self._awaited
            loop.cancel(task)

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
