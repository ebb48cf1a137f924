"""Search provider `local`: searches the passages of a file on this machine."""

import asyncio
from collections.abc import Mapping, Sequence

from ramify.core.protocols import Hit, Json
from ramify.tools.passages import PassageIndex


class LocalSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a passage index, which it closes."""

    name = "local"

    def __init__(self, index: PassageIndex) -> None:
        self._index = index
        self.identity: Mapping[str, Json] = {"corpus": index.fingerprint, "engine": index.engine}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """At most `top_k` passages. The search runs in a thread, since a long query takes a while."""
        found = await asyncio.to_thread(self._index.search, query, top_k, collection)
        return [Hit(passage.id, passage.text) for passage in found]

    async def close(self) -> None:
        """Close files."""
        self._index.close()
