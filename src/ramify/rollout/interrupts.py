"""Ctrl-C and SIGTERM lose nothing: the first stops the run at the next safe point, a second one ends it at once."""

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
    """While this is entered, SIGINT and SIGTERM ask the run to stop; a coroutine under `run` is cancelled at once."""

    def __init__(self, loop: AgentLoop | None = None) -> None:
        """`loop` is the loop in which `run` runs coroutines."""
        self._loop = loop
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
        """Mark a point at which the run can stop safely.

        Raises:
            Interrupted: A stop was asked for.
        """
        if self._number is not None:
            raise Interrupted(self._number)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the agent's loop to its end, or until a stop is asked for.

        Raises:
            Interrupted: A stop was asked for; the coroutine was cancelled.
        """

        async def watched() -> Result:
            self._task = task = asyncio.current_task()
            assert task is not None
            if self._number is not None:  # asked for before there was a task to cancel
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
        self._give_back()
        if self._loop is not None and self._task is not None:
            self._loop.cancel(self._task)

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
