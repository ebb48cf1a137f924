"""What stands between a cache and its file: claims on keys, answers in memory, and the thread that writes.

Of all tasks, threads and processes that share a cache, only the holder of a key's claim asks the service. One
transaction of the writer thread stores all answers that arrived during the previous one.
"""

import atexit
import contextlib
import fcntl
import os
import queue
import sqlite3
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ramify.cache.database import connect, primary_code
from ramify.cache.keys import encode, place
from ramify.core.protocols import CacheKey, Json

_SET_LOCK: Final = getattr(fcntl, "F_OFD_SETLK", None)
"""Linux's open file description locks. They belong to an open file, not to a process, so threads exclude each other too."""
_FLOCK: Final = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


class Claims:
    """Claims on keys. Without such locks every claim is granted, and each process asks for itself.

    A claim is a lock on one byte of a file beside the cache; the key determines which byte. The operating system
    releases the lock when its owner ends, however it ends, so no claim is left behind and none needs a heartbeat.
    """

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        if _SET_LOCK is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, digest: bytes) -> bool:
        """Try to claim a key; False if somebody else holds the claim."""
        if self._file is None:
            return True
        try:
            self._lock(fcntl.F_WRLCK, digest)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # the file system has no locks
            self.close()
        return True

    def free(self, digest: bytes) -> None:
        """Give a claim back."""
        if self._file is not None:
            self._lock(fcntl.F_UNLCK, digest)

    def close(self) -> None:
        """Give all claims back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self, kind: int, digest: bytes) -> None:
        if self._file is not None and _SET_LOCK is not None:
            fcntl.fcntl(self._file, _SET_LOCK, struct.pack(_FLOCK, kind, os.SEEK_SET, place(digest), 1, 0))


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
    """Keeps the most recently used answers in memory, at most `limit` characters of JSON in total."""

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


_MOST_ROWS: Final = 1000
_BUSY_TRIES: Final = 10
_PUT: Final = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_IMPORTED: Final = (
    "INSERT INTO imported (spelled, place, text) VALUES (?, ?, ?) "
    "ON CONFLICT (spelled) DO UPDATE SET place = excluded.place, text = excluded.text"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer to store.

    Attributes:
        key: Its key.
        digest: Digest of the key.
        text: The answer as JSON.
        entry: The answer as it is in memory.
        claimed: Whether to release the claim on the key once this is written.
    """

    key: CacheKey
    digest: bytes
    text: str
    entry: Remembered
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an imported file spells a request, and the original text (None if the answer reproduces it)."""

    spelled: str
    digest: bytes
    text: str | None


class Writer:
    """The writer thread.

    A transaction that fails (a full disk) is dropped, and its answers are counted in `forgotten`; the user is told
    once. The thread survives every error, since nobody would notice that it ended.
    """

    def __init__(self, path: Path, free: Callable[[bytes], None], say: Callable[[str], None]) -> None:
        """Start the thread.

        Args:
            path: An existing cache.
            free: Releases the claim on a digest.
            say: Called once, from the thread, when answers are lost.
        """
        self._path, self._free, self._say = path, free, say
        self._inbox: queue.SimpleQueue[Row | Spelling | threading.Event | None] = queue.SimpleQueue()
        self.unwritten: dict[bytes, Remembered] = {}
        self.forgotten = 0
        self._has_said = False
        self._connection = connect(path)
        self._thread = threading.Thread(target=self._run, name="cache writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, item: Row | Spelling) -> None:
        """Queue an item for writing."""
        if isinstance(item, Row):
            self.unwritten[item.digest] = item.entry
        self._inbox.put(item)

    def flush(self) -> None:
        """Wait until all queued items are written (or lost)."""
        written = threading.Event()
        self._inbox.put(written)
        while self._thread.is_alive() and not written.wait(0.1):
            pass

    def close(self) -> None:
        """Write the rest and end the thread; closing twice is allowed."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            batch = [self._inbox.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _MOST_ROWS:
                    batch.append(self._inbox.get_nowait())
            going = None not in batch
            rows = [item for item in batch if isinstance(item, Row)]
            self._save(rows, [item for item in batch if isinstance(item, Spelling)])
            for row in rows:
                if self.unwritten.get(row.digest) is row.entry:
                    del self.unwritten[row.digest]
                if row.claimed:
                    self._end_claim(row.digest)
            for item in batch:
                if isinstance(item, threading.Event):
                    item.set()
        self._connection.close()

    def _save(self, rows: list[Row], spellings: list[Spelling]) -> None:
        if not rows and not spellings:
            return
        try:
            self._begin()
            self._connection.executemany(_PUT, map(_columns, rows))
            self._connection.executemany(_IMPORTED, map(_spelling_columns, spellings))
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - see the class
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            self.forgotten += len(rows) + len(spellings)
            self._say_once(f"answers are not remembered any more; the run goes on ({error})")

    def _end_claim(self, digest: bytes) -> None:
        try:
            self._free(digest)
        except Exception as error:  # noqa: BLE001 - see the class
            self._say_once(
                f"claims cannot be released, so runs that share it may wait for this run ({error})"
            )

    def _say_once(self, what: str) -> None:
        if not self._has_said:
            self._has_said = True
            self._say(f"cache {self._path}: {what}")

    def _begin(self) -> None:
        """Take the write lock; processes that share the file may hold it for a while."""
        for tries_left in reversed(range(_BUSY_TRIES)):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY or not tries_left:
                    raise
                time.sleep(0.05)
            else:
                return


def _columns(row: Row) -> tuple[object, ...]:
    key = row.key
    parameters = encode(dict(sorted(key.parameters.items())))
    readable = (_plain(text) for text in (key.tool, key.provider, parameters, key.request))
    return place(row.digest), row.digest, *readable, row.text, int(row.entry.is_empty), row.entry.made_at


def _spelling_columns(spelling: Spelling) -> tuple[object, ...]:
    text = None if spelling.text is None else _plain(spelling.text)
    return _plain(spelling.spelled), place(spelling.digest), text


def _plain(text: str) -> str:
    """Text that SQLite can hold: lone surrogates are escaped. Lookups go by digest, so nothing depends on this text."""
    return text.encode("utf-8", "backslashreplace").decode()
