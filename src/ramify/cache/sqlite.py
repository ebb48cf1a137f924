"""The cache of a run: an in-memory cache in front of a file that several runs can share."""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ramify.cache.database import broken_row, connect, read_answer, unusable
from ramify.cache.keys import Flights, decode, digest, encode, is_empty, place
from ramify.cache.writer import Claims, Memory, Remembered, Row, Spelling, Writer, memory_name
from ramify.core.errors import MachineError
from ramify.core.protocols import CacheKey, Json

_FIRST_POLL_SECONDS: Final = 0.002
_LAST_POLL_SECONDS: Final = 0.05
_FIND: Final = "SELECT answer, is_empty, made_at FROM answers WHERE place = ? AND key = ?"


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    """How long and how much is cached.

    Attributes:
        keep_seconds: How long an answer is valid; None: for ever.
        keep_empty_seconds: How long an empty answer is valid; None: for ever.
        memory_chars: Most characters of JSON kept in memory.
        wait_seconds: Longest wait for another process that makes the same request; then this one asks too.
    """

    keep_seconds: float | None = None
    keep_empty_seconds: float | None = 86_400.0
    memory_chars: int = 100_000_000
    wait_seconds: float = 120.0


@dataclass(slots=True)
class CacheCounts:
    """How many requests were answered from memory, from disk, or by asking."""

    memory: int = 0
    disk: int = 0
    asked: int = 0
    waited: int = 0
    """Requests that waited for another process which was making the same one."""


class SqliteCache:
    """A `Cache` in a file that threads and processes share, each with an object of its own.

    One object belongs to the process that opened it, and to one event loop at a time. Identical requests at the same
    time call `make` once, across processes too. An error of `make` is raised to all who wait in this process; other
    processes then ask for themselves. Failures are never cached. A thread writes the answers in batches, so a kill
    loses those of the last few milliseconds. If the disk is full or fails, answers are no longer stored, but the run
    goes on.
    """

    def __init__(
        self,
        path: Path,
        settings: SqliteSettings | None = None,
        *,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open or create the file.

        Args:
            path: The file; its folder is created.
            settings: Limits.
            say: Called once, with a message, when answers can no longer be stored; by default logs a warning.
            clock: Seconds since 1970.

        Raises:
            DataError: The file is not a cache, is damaged, or has another schema.
            MachineError: It cannot be opened or written.
        """
        self.path = path
        self._process = os.getpid()
        self.counts = CacheCounts()
        self._settings, self._clock = settings or SqliteSettings(), clock
        self._memory = Memory(self._settings.memory_chars)
        self._flights = Flights()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(f"cache {path}: its folder cannot be made: {error.strerror}") from None
        self._reader = connect(path)
        self._cursor = self._reader.cursor()
        claims = Path(os.path.realpath(path)).with_name(path.name + "-claims")
        try:
            self._claims = Claims(claims)
        except OSError as error:
            self._reader.close()
            raise MachineError(
                f"cache {path}: {claims} beside it cannot be written: {error.strerror}"
            ) from None
        self._writer = Writer(path, self._claims.free, say or logging.getLogger(__name__).warning)

    @property
    def forgotten(self) -> int:
        """How many answers could not be written."""
        return self._writer.forgotten

    async def fetch(self, key: CacheKey, make: Callable[[], Awaitable[Json]]) -> Json:
        """The cached answer; else the answer of `make`, which is then cached. See `Cache`.

        All callers get the same object and must not change it: a copy would cost more than the lookup.

        Raises:
            DataError: The file is damaged.
            MachineError: This process is a fork of the one that opened the cache.
        """
        self._require_own_process()
        name = memory_name(key)
        found = self._memory.get(name)
        if found is not None and self._is_fresh(found):
            self.counts.memory += 1
            return found.value
        key_digest = digest(key)
        if (found := self._find(key_digest)) is not None:
            return self._hit(name, found)
        return await self._flights.join(key_digest, lambda: self._ask(key, key_digest, make))

    def remember(self, key: CacheKey, value: Json) -> Json:
        """Cache an answer; returns it as later reads will see it. The writer thread stores it.

        Raises:
            TypeError, ValueError: The answer is not JSON.
            MachineError: This process is a fork of the one that opened the cache.
        """
        self._require_own_process()
        return self._remember(key, memory_name(key), digest(key), value, claimed=False)

    def remember_spelling(self, spelled: str, key: CacheKey, text: str | None) -> None:
        """Store how an imported file spelled a request, and the original text (None if the answer reproduces it)."""
        self._writer.put(Spelling(spelled, digest(key), text))

    async def flush(self) -> None:
        """Wait until all answers so far are in the file."""
        await asyncio.to_thread(self._writer.flush)

    async def close(self) -> None:
        """Cancel pending requests and write the remaining answers; closing twice is allowed. In a fork, does nothing."""
        if os.getpid() != self._process:
            return
        await self._flights.close()
        await asyncio.to_thread(self._writer.close)
        self._claims.close()
        self._reader.close()

    def _require_own_process(self) -> None:
        """Raise in a fork: it has no writer thread, and SQLite does not allow it to use the connections."""
        if os.getpid() != self._process:
            raise MachineError(f"cache {self.path} was opened before a fork; open one in each process")

    async def _ask(self, key: CacheKey, key_digest: bytes, make: Callable[[], Awaitable[Json]]) -> Json:
        name = memory_name(key)
        if (found := await self._claim_or_find(key_digest)) is not None:
            return self._hit(name, found)
        try:
            self.counts.asked += 1
            return self._remember(key, name, key_digest, await make(), claimed=True)
        except BaseException:
            self._claims.free(key_digest)
            raise

    def _hit(self, name: Hashable, found: Remembered) -> Json:
        self.counts.disk += 1
        self._memory.put(name, found)
        return found.value

    async def _claim_or_find(self, key_digest: bytes) -> Remembered | None:
        """The answer that another process stored meanwhile. None: we hold the claim, or its owner took too long."""
        pause, give_up = _FIRST_POLL_SECONDS, time.monotonic() + self._settings.wait_seconds
        waited = False
        while not self._claims.take(key_digest):
            self.counts.waited += not waited
            waited = True
            if time.monotonic() > give_up:
                return None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_SECONDS)
        # The previous owner of the claim may have stored the answer after we looked.
        try:
            found = self._find(key_digest)
        except BaseException:
            self._claims.free(key_digest)
            raise
        if found is not None:
            self._claims.free(key_digest)
        return found

    def _find(self, key_digest: bytes) -> Remembered | None:
        if (unwritten := self._writer.unwritten.get(key_digest)) is not None:
            return unwritten if self._is_fresh(unwritten) else None
        where = place(key_digest)
        try:
            row = self._cursor.execute(_FIND, (where, key_digest)).fetchone()
        except sqlite3.OperationalError:  # the disk fails, or the file stays locked: ask instead
            return None
        except sqlite3.DatabaseError as error:
            raise unusable(self.path, error) from None
        if row is None:
            return None
        text, empty, made_at = row
        if not isinstance(made_at, float):
            raise broken_row(self.path, where)
        found = Remembered(read_answer(self.path, where, text), made_at, bool(empty), len(text))
        return found if self._is_fresh(found) else None

    def _remember(self, key: CacheKey, name: Hashable, key_digest: bytes, value: Json, claimed: bool) -> Json:
        text = encode(value)
        value = decode(text)
        entry = Remembered(value, self._clock(), is_empty(value), len(text))
        self._memory.put(name, entry)
        self._writer.put(Row(key, key_digest, text, entry, claimed))
        return value

    def _is_fresh(self, entry: Remembered) -> bool:
        keep = self._settings.keep_empty_seconds if entry.is_empty else self._settings.keep_seconds
        return keep is None or self._clock() - entry.made_at < keep
