"""What stands between a cache and its file: answers in memory, and the thread that writes.

One transaction of the thread stores all answers that arrived during the previous one.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ramify.cache.database import Entry, Row, connect, files_of, write_rows
from ramify.cache.keys import Claims
from ramify.core.errors import MachineError
from ramify.core.protocols import CacheKey


def memory_name(key: CacheKey) -> Hashable:
    """Name a key in memory, much cheaper than by its digest.

    Equal names mean equal keys, since `repr` tells 1, 1.0 and True apart. The same parameters in another order have
    another name; such a key is found on disk.
    """
    return key.tool, key.provider, repr(key.parameters), key.request


class Memory:
    """Keeps the most recently used entries in memory, at most `limit` characters of JSON in total."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def get(self, name: Hashable) -> Entry | None:
        """Return the entry, or None; it becomes the most recently used."""
        entry = self._entries.get(name)
        if entry is not None:
            self._entries.move_to_end(name)
        return entry

    def put(self, name: Hashable, entry: Entry) -> None:
        """Store an entry, and drop the least recently used ones that no longer fit."""
        if (old := self._entries.pop(name, None)) is not None:
            self._size -= old.size
        self._entries[name] = entry
        self._size += entry.size
        while self._size > self._limit and self._entries:
            self._size -= self._entries.popitem(last=False)[1].size


_MOST_ROWS: Final = 1000
"""Of one transaction."""


class Writer:
    """The writer thread, and the claims of those who ask.

    A transaction that fails (a full disk) is dropped, its answers are counted in `forgotten`, and the thread goes on.
    """

    def __init__(self, path: Path, on_loss: Callable[[Exception], None], *, alone: bool) -> None:
        """Start the thread.

        Args:
            path: An existing cache.
            on_loss: Called once, from the thread, when answers are lost.
            alone: Refuse to write beside another that is alone.

        Raises:
            MachineError: The file of claims cannot be written, or somebody else is alone.
        """
        self._on_loss = on_loss
        self._connection = connect(path)
        claims = files_of(path)[-1]
        try:
            self.claims = Claims(claims, alone=alone)
        except OSError as error:
            self._connection.close()
            if isinstance(error, BlockingIOError):
                message = f"cassette {path} is being written by another run; name another file"
            else:
                message = f"cache {path}: {claims} beside it cannot be written: {error.strerror}"
            raise MachineError(message) from None
        self.unwritten: dict[bytes, Entry] = {}
        self.forgotten = 0
        self._open: list[Row] | None = None  # the batch that still takes rows
        self._lock = threading.Lock()
        # A pool of one: Python waits for what it has to do before it ends.
        self._thread = ThreadPoolExecutor(1, "cache writer")
        self._batch: Future[None] = Future()

    def put(self, row: Row) -> "Future[None]":
        """Queue a row; returns the future of the batch that writes it, whose exception means that it is lost."""
        with self._lock:
            self.unwritten[row.digest] = row.entry
            if self._open is None or len(self._open) == _MOST_ROWS:
                self._open = []
                self._batch = self._thread.submit(self._write, self._open)
            self._open.append(row)
            return self._batch

    def flush(self) -> None:
        """Wait until all queued rows are written (or lost)."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Write the rest, end the thread and give all claims back; closing twice is allowed."""
        self._thread.shutdown()
        self._connection.close()
        self.claims.close()

    def _write(self, rows: list[Row]) -> None:
        with self._lock:
            if rows is self._open:
                self._open = None
        try:
            write_rows(self._connection, rows)
        except Exception as error:
            self.forgotten += len(rows)
            if self.forgotten == len(rows):
                self._on_loss(error)
            raise
        finally:
            for row in rows:
                with self._lock:  # for each row, so that nobody who puts one waits for all
                    if self.unwritten.get(row.digest) is row.entry:
                        del self.unwritten[row.digest]
