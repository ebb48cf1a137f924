"""Closing several resources even if closing some of them fails, and knowing when all living trajectories wait."""

from collections.abc import Callable, Iterable
from typing import Protocol


class Closable(Protocol):
    """Something that holds processes, connections or files."""

    async def close(self) -> None:
        """Free them; closing twice is allowed."""
        ...


async def close_all(resources: Iterable[Closable]) -> None:
    """Close each of them in order, then raise the first error, if any."""
    first: BaseException | None = None
    for resource in resources:
        try:
            await resource.close()
        except BaseException as error:  # noqa: BLE001 - raised below
            first = first or error
    if first is not None:
        raise first


class LiveCount:
    """The number of living trajectories. An engine may step when as many requests are waiting.

    A trajectory enters when it is spawned, before its task first runs, and leaves when it ends. In between it is
    either inside the engine or about to return to it. So does a tree while its environment opens.
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
