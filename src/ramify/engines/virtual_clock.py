"""An event loop with a virtual clock: waiting takes no real time, and events happen in the order of their times."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")


class _JumpingSelector(selectors.BaseSelector):
    """Never waits for a timer, but moves the clock to it. Real input (a subprocess) is still polled."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return self._real.select(None)
        ready = self._real.select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on a virtual clock that starts at 0 seconds."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._clock.now

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Executor | None,
        function: Callable[..., Result],
        *arguments: Any,  # noqa: ANN401
    ) -> "asyncio.Future[Result]":
        """Run the function synchronously: in a thread it would end at a virtual time that depends on the machine."""
        del executor
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, Result]) -> tuple[Result, float]:
    """Run a coroutine on a fresh virtual clock; returns its result and the virtual seconds that it took."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        loop = runner.get_loop()
        result = runner.run(main)
        return result, loop.time()
