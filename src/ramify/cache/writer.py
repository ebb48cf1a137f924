"""The layer between a cache and its file: answers in memory, and the thread that writes.

One transaction of the thread stores all answers that arrived during the previous one.
"""

import atexit
import contextlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
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
    """Holds the most recently used entries, at most `limit` characters of JSON in total."""

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
"""Most rows of one transaction."""


class Writer:
    """The writer thread, and the claims of pending requests.

    A transaction that fails (a full disk) is dropped, its answers are counted in `forgotten`, and the thread continues.
    """

    def __init__(self, path: Path, on_loss: Callable[[Exception], None], *, alone: bool) -> None:
        """Start the thread.

        Args:
            path: An existing cache.
            on_loss: Called once, from the thread, when answers are lost.
            alone: Refuse to write beside another with `alone`.

        Raises:
            MachineError: The file of claims cannot be written, or another run has `alone`.
        """
        self._on_loss = on_loss
        self._connection = connect(path)
        claims = files_of(path)[-1]
        try:
            self.claims = Claims(claims, alone=alone)
        except OSError as error:
            self._connection.close()
            if isinstance(error, BlockingIOError):
                message = f"cassette {path} is being written by another run. Choose another file."
            else:
                message = f"cache {path}: {claims} beside it cannot be written: {error.strerror}"
            raise MachineError(message) from None
        self.unwritten: dict[bytes, Entry] = {}
        self.forgotten = 0
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[tuple[Row | None, Future[None] | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cache writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, row: Row, written: "Future[None] | None" = None) -> None:
        """Queue a row; `written` is done when it is in the file, or has the error that lost it."""
        with self._lock:
            self.unwritten[row.digest] = row.entry
        self._inbox.put((row, written))

    def flush(self) -> None:
        """Wait until all queued rows are written (or lost)."""
        written: Future[None] = Future()
        self._inbox.put((None, written))
        written.exception()

    def close(self) -> None:
        """Write the remaining rows, end the thread and release all claims; closing twice is allowed."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._inbox.put((None, None))
            self._thread.join()
        self.claims.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = [self._inbox.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _MOST_ROWS:
                    batch.append(self._inbox.get_nowait())
            rows = [row for row, _ in batch if row is not None]
            error = self._write(rows) if rows else None
            for row in rows:
                with self._lock:  # for each row, so that no `put` waits for all
                    if self.unwritten.get(row.digest) is row.entry:
                        del self.unwritten[row.digest]
            for _, written in batch:
                if written is not None:
                    written.set_exception(error) if error else written.set_result(None)
            is_open = (None, None) not in batch
        self._connection.close()

    def _write(self, rows: list[Row]) -> Exception | None:
        try:
            write_rows(self._connection, rows)
        except Exception as error:  # noqa: BLE001 - nobody would notice that the thread ended
            self.forgotten += len(rows)
            if self.forgotten == len(rows):
                self._on_loss(error)
            return error
        return None
