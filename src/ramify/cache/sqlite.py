"""The cache of a run: an in-memory cache in front of a file that several runs can share. A cassette is one with a mode."""

import asyncio
import logging
import math
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NoReturn

from ramify.cache.database import FAILURE, Entry, Row, connect, connect_to_read, read_entry, unusable
from ramify.cache.keys import Flights, digest, row_number_of
from ramify.cache.writer import Memory, Writer, memory_name
from ramify.core.errors import DataError, MachineError, ServiceDownError
from ramify.core.protocols import CacheKey, Json
from ramify.net.failures import RequestFailedError
from ramify.runtime.call_clock import count_in_call

_FIRST_POLL_SECONDS: Final = 0.002
_LAST_POLL_SECONDS: Final = 0.05
_FIND: Final = "SELECT answer, is_empty, made_at FROM answers WHERE place = ? AND key = ?"


class CacheMode(StrEnum):
    """Policies for a request. All modes but the first make the cache a cassette.

    A cassette stores failed requests too, so a replay fails in the same places. Its entries never expire, and an
    answer is in the file before it is returned.
    """

    CACHE = "cache"
    """Answer from the file as long as an entry is valid; several runs share the file."""
    RECORD = "record"
    """Ask each request once per run; its outcome replaces what the file had."""
    REPLAY = "replay"
    """Answer from the file; ask for what is missing, and add it to the file."""
    REPLAY_OR_FAIL = "replay_or_fail"
    """Answer from the file; never ask."""


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    """Limits of a cache.

    Attributes:
        keep_seconds: Time for which an answer is valid; None: for ever.
        keep_empty_seconds: Time for which an empty answer is valid; None: for ever.
        memory_chars: Most characters of JSON in memory.
        wait_seconds: Longest wait for another process that makes the same request; then this one makes it too.
    """

    keep_seconds: float | None = None
    keep_empty_seconds: float | None = 86_400.0
    memory_chars: int = 100_000_000
    wait_seconds: float = 120.0


@dataclass(slots=True)
class CacheCounts:
    """Numbers of requests answered from memory, from disk, or by neither."""

    memory: int = 0
    disk: int = 0
    misses: int = 0
    waited: int = 0
    """Requests that waited for another process which was making the same one."""


class SqliteCache:
    """A `Cache` in a file that threads and processes share, each with an object of its own.

    One object belongs to the process that opened it, and to one event loop at a time. Identical requests at the same
    time call `make` once, across processes too. An error of `make` is raised to all who wait in this process; other
    processes then ask for themselves. A thread writes the answers in batches.

    A plain cache never stores failures; a kill loses the answers of the last few milliseconds, and if the disk is full
    or fails, answers are no longer stored, but the run continues. One run at a time can record into a cassette; any
    number can read it with `replay_or_fail`.
    """

    def __init__(
        self,
        path: Path,
        settings: SqliteSettings | None = None,
        *,
        mode: CacheMode = CacheMode.CACHE,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open or create the file.

        Args:
            path: The file; its folder is created.
            settings: Limits; those of validity are a plain cache's.
            mode: See `CacheMode`.
            say: Called once, with a message, when answers can no longer be stored; by default logs a warning.
            clock: Seconds since 1970.

        Raises:
            DataError: The file is not a cache, is damaged, has another schema, or is missing in mode `replay_or_fail`.
            MachineError: It cannot be opened or written, or another run records into it.
        """
        self.path, self._mode, self._clock = path, mode, clock
        self._settings = settings or SqliteSettings()
        self._keep_seconds: tuple[float | None, ...] = (None, None, None)
        if mode is CacheMode.CACHE:  # to which a failure is never valid
            self._keep_seconds = (self._settings.keep_seconds, self._settings.keep_empty_seconds, -math.inf)
        self._process = os.getpid()
        self.counts = CacheCounts()
        self._memory = Memory(self._settings.memory_chars)
        self._flights = Flights()
        self._recorded: set[bytes] = set()
        self._is_closing = False
        self._say = say or logging.getLogger(__name__).warning
        self._writer: Writer | None = None
        if mode is CacheMode.REPLAY_OR_FAIL:
            if not path.is_file():
                raise DataError(f"cassette {path} does not exist. Record one first.")
            self._reader = connect_to_read(path)
        else:
            self._reader = connect(path)  # before the writer, so that no file appears beside a foreign file
            try:
                self._writer = Writer(path, self._lose, alone=mode is not CacheMode.CACHE)
            except BaseException:
                self._reader.close()
                raise
        self._cursor = self._reader.cursor()

    @property
    def forgotten(self) -> int:
        """Count the answers that could not be written."""
        return self._writer.forgotten if self._writer else 0

    async def fetch(self, key: CacheKey, make: Callable[[], Awaitable[Json]]) -> Json:
        """Return the cached answer; else the answer of `make`, which is then cached. See `Cache`.

        All callers get the same object and must not change it: a copy would cost more than the lookup.

        Raises:
            RequestFailedError: A cassette recorded this failure.
            ServiceDownError: There is no entry, and the mode forbids asking; names the request.
            DataError: The file is damaged.
            MachineError: A cassette cannot be written, or this process is a fork of the one that opened the cache.
        """
        self._require_own_process()
        name = memory_name(key)
        entry = self._memory.get(name)
        if entry is not None and self._is_valid(entry):
            self.counts.memory += 1
            count_in_call(f"cache/{key.tool}/hits")
            return entry.value if entry.outcome != FAILURE else self._fail(key, entry)
        key_digest = digest(key)
        if (entry := self._find(key_digest)) is not None:
            count_in_call(f"cache/{key.tool}/hits")
            return self._hit(key, name, entry)
        sends = False

        async def ask() -> Json:
            nonlocal sends
            sends = True
            return await self._ask(key, key_digest, make)

        try:
            return await self._flights.join(key_digest, ask)
        finally:
            # Whoever joins a request in flight sends none.
            count_in_call(f"cache/{key.tool}/{'misses' if sends else 'hits'}")

    def remember(self, key: CacheKey, value: Json) -> Json:
        """Cache an answer; returns it as later reads will see it. The writer thread stores it.

        Raises:
            TypeError, ValueError: The answer is not JSON.
            MachineError: This process is a fork of the one that opened the cache, or the mode is `replay_or_fail`.
        """
        self._require_own_process()
        if self._writer is None:
            raise MachineError(f"cassette {self.path} was opened with replay_or_fail, which writes nothing")
        row = Row.of(key, digest(key), value, self._clock())
        self._store(self._writer, row)
        return row.entry.value

    async def flush(self) -> None:
        """Wait until all answers so far are in the file."""
        if self._writer is not None:
            await asyncio.to_thread(self._writer.flush)

    async def close(self) -> None:
        """Cancel pending requests and write the remaining answers; closing twice is allowed. In a fork, does nothing."""
        if os.getpid() != self._process:
            return
        self._is_closing = True
        await self._flights.close()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        self._reader.close()

    def _require_own_process(self) -> None:
        """Raise in a fork: it has no writer thread, and SQLite does not allow it to use the connections."""
        if os.getpid() != self._process:
            raise MachineError(f"cache {self.path} was opened before a fork. Open one in each process.")

    async def _ask(self, key: CacheKey, key_digest: bytes, make: Callable[[], Awaitable[Json]]) -> Json:
        writer = self._writer
        if writer is None:
            raise ServiceDownError(
                f"cassette {self.path} has no answer to {_named(key)}, and replay_or_fail sends no request"
            )
        await self._claim(writer, key_digest)
        failure: RequestFailedError | None = None
        try:
            # The previous owner of the claim may have stored an answer since the first lookup.
            if (entry := self._find(key_digest)) is not None:
                writer.claims.release(key_digest)
                return self._hit(key, memory_name(key), entry)
            self.counts.misses += 1
            try:
                row = Row.of(key, key_digest, await make(), self._clock())
            except RequestFailedError as error:
                if self._mode is CacheMode.CACHE or self._is_closing:  # closing makes requests fail
                    raise
                failure = error
                row = Row.of(key, key_digest, error.as_json(), self._clock(), failed=True)
        except BaseException:
            writer.claims.release(key_digest)
            raise
        written: Future[None] = Future()
        written.add_done_callback(lambda _: writer.claims.release(key_digest))
        self._store(writer, row, written)
        if self._mode is not CacheMode.CACHE:
            await self._require_written(written)
        if failure is not None:
            raise failure
        return row.entry.value

    def _store(self, writer: Writer, row: Row, written: "Future[None] | None" = None) -> None:
        self._memory.put(memory_name(row.key), row.entry)
        if self._mode is CacheMode.RECORD:
            self._recorded.add(row.digest)
        writer.put(row, written)

    async def _require_written(self, written: "Future[None]") -> None:
        try:
            # Shielded: cancelling the request must not cancel the future that the writer is about to set.
            await asyncio.shield(asyncio.wrap_future(written))
        except Exception as error:  # noqa: BLE001 - of SQLite, or of a key that is not JSON
            raise MachineError(f"cassette {self.path} cannot be written: {error}") from None

    def _lose(self, error: Exception) -> None:
        """Tell the user that answers are lost; a cassette's requests raise instead."""
        if self._mode is CacheMode.CACHE:
            self._say(f"cache {self.path}: answers are no longer stored ({error}). The run continues.")

    def _hit(self, key: CacheKey, name: Hashable, entry: Entry) -> Json:
        self.counts.disk += 1
        self._memory.put(name, entry)
        return entry.value if entry.outcome != FAILURE else self._fail(key, entry)

    def _fail(self, key: CacheKey, entry: Entry) -> NoReturn:
        """Raise the failure that a cassette recorded."""
        try:
            failure = RequestFailedError.from_json(entry.value)
        except Exception:  # noqa: BLE001 - anyone may have written the file
            raise DataError(f"cassette {self.path}: the failure of {key.request[:80]!r} is broken") from None
        raise failure

    async def _claim(self, writer: Writer, key_digest: bytes) -> None:
        """Wait for the claim on a key, at most `wait_seconds`."""
        pause, deadline = _FIRST_POLL_SECONDS, time.monotonic() + self._settings.wait_seconds
        is_waiting = False
        while not writer.claims.take(key_digest) and time.monotonic() < deadline:
            self.counts.waited += not is_waiting
            is_waiting = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_SECONDS)

    def _find(self, key_digest: bytes) -> Entry | None:
        if self._mode is CacheMode.RECORD and key_digest not in self._recorded:
            return None
        if self._writer is not None and (entry := self._writer.unwritten.get(key_digest)) is not None:
            return entry if self._is_valid(entry) else None
        row_number = row_number_of(key_digest)
        try:
            row = self._cursor.execute(_FIND, (row_number, key_digest)).fetchone()
        except sqlite3.DatabaseError as error:
            # The disk fails, or the file stays locked: a cache makes the request instead.
            if isinstance(error, sqlite3.OperationalError) and self._mode is CacheMode.CACHE:
                return None
            raise unusable(self.path, error) from None
        if row is None:
            return None
        entry = read_entry(self.path, row_number, *row)
        return entry if self._is_valid(entry) else None

    def _is_valid(self, entry: Entry) -> bool:
        keep_seconds = self._keep_seconds[entry.outcome]
        return keep_seconds is None or self._clock() - entry.made_at < keep_seconds


def _named(key: CacheKey) -> str:
    """Name a key in messages; a long request is cut."""
    request = key.request if len(key.request) <= 80 else key.request[:77] + "..."
    return f"{key.tool} of {key.provider} for {request!r}"
