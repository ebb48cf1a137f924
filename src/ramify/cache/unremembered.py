"""The `Cache` of a recipe without a cache: it stores nothing."""

from collections.abc import Awaitable, Callable

from ramify.cache.flights import Flights
from ramify.cache.keys import digest
from ramify.core.protocols import CacheKey, Json


class Unremembered:
    """A `Cache` that always asks, but only once for identical requests that are pending at the same time."""

    def __init__(self) -> None:
        self._flights = Flights()

    async def fetch(self, key: CacheKey, make: Callable[[], Awaitable[Json]]) -> Json:
        """The answer of `make`, or of an identical request that is pending."""
        return await self._flights.join(digest(key), make)

    async def close(self) -> None:
        """Cancel all pending requests."""
        await self._flights.close()
