"""Closing several resources, even if closing some of them fails."""

from collections.abc import Iterable
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
