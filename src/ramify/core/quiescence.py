"""Counting the living trajectories, so that a deterministic engine can wait until all of them are waiting for it."""

from collections.abc import Callable


class LiveCount:
    """The number of living trajectories. An engine may step when as many requests are waiting.

    A trajectory enters when it is spawned, before its task first runs, and leaves when it ends. In between it is
    either inside the engine or about to return to it.
    """

    def __init__(self) -> None:
        self.value = 0
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change."""
        self._watchers.append(callback)

    def enter(self) -> None:
        """Count a trajectory that starts."""
        self._change(1)

    def leave(self) -> None:
        """Count a trajectory that has ended."""
        self._change(-1)

    def _change(self, by: int) -> None:
        self.value += by
        for callback in self._watchers:
            callback()
