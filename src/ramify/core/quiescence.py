"""Counting what is on its way, so that a deterministic engine can wait until nothing else moves."""

from collections.abc import Callable


class LiveCount:
    """The number of trajectories that are alive. An engine whose waiting requests equal it may step.

    A trajectory enters when it is spawned, before its task first runs, and leaves when it ends; so between the
    two it is either inside the engine or about to come back to it.
    """

    def __init__(self) -> None:
        self.value = 0
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change."""
        self._watchers.append(callback)

    def enter(self) -> None:
        """One trajectory more."""
        self._change(1)

    def leave(self) -> None:
        """One trajectory less."""
        self._change(-1)

    def _change(self, by: int) -> None:
        self.value += by
        for callback in self._watchers:
            callback()
