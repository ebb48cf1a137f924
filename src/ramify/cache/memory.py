"""The least-recently-used cache in memory."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from ramify.core.protocols import CacheKey, Json


@dataclass(frozen=True, slots=True)
class Remembered:
    """An answer and when it was made (seconds since 1970)."""

    value: Json
    made_at: float
    is_empty: bool
    size: int


def memory_name(key: CacheKey) -> Hashable:
    """The name of a key in memory, much cheaper to compute than its digest.

    Equal names mean equal keys, since `repr` tells 1, 1.0 and True apart. The same parameters in another order have
    another name; such a key is found on disk.
    """
    return key.tool, key.provider, repr(key.parameters), key.request


class Memory:
    """Keeps the most recently used answers, at most `limit` characters of JSON in total."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[Hashable, Remembered] = OrderedDict()

    def get(self, name: Hashable) -> Remembered | None:
        """The answer, or None; it becomes the most recently used."""
        found = self._entries.get(name)
        if found is not None:
            self._entries.move_to_end(name)
        return found

    def put(self, name: Hashable, entry: Remembered) -> None:
        """Store an answer, and drop the least recently used ones that no longer fit."""
        self.drop(name)
        self._entries[name] = entry
        self._size += entry.size
        while self._size > self._limit and self._entries:
            self._size -= self._entries.popitem(last=False)[1].size

    def drop(self, name: Hashable) -> None:
        """Drop an answer, if it is here."""
        if (old := self._entries.pop(name, None)) is not None:
            self._size -= old.size
