"""A cache that records the answers of services in a file and replays them without asking."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ramify.cache.cassette_file import CassetteFile, Entry, entry_of, read_cassette
from ramify.cache.flights import Flights
from ramify.cache.keys import canonical, named
from ramify.core.errors import DataError, ServiceDownError
from ramify.core.protocols import CacheKey, Json


class CassetteMode(StrEnum):
    """What a cassette does with a request."""

    RECORD = "record"
    """Ask each request once per run and record the answer; it replaces what the file had."""
    REPLAY = "replay"
    """Answer from the file; ask for what is missing, and add it to the file."""
    REPLAY_OR_FAIL = "replay_or_fail"
    """Answer from the file; never ask."""


@dataclass(frozen=True, slots=True)
class FailureForm:
    """How a failed request is recorded.

    Attributes:
        kind: The class of errors that are recorded; other errors are raised and not recorded.
        write: Turns an error into JSON.
        read: Turns that JSON back into the error.
    """

    kind: type[Exception]
    write: Callable[[Any], Json]
    read: Callable[[Json], Exception]


class Cassette:
    """A `Cache` in a file of its own. It records failed requests too, so a replay fails in the same places.

    Entries never expire. One run at a time can record into a file; any number can read it with `replay_or_fail`.
    """

    def __init__(self, path: Path, mode: CassetteMode, failures: FailureForm) -> None:
        """Open the file.

        Raises:
            DataError: The file is not a cassette, is broken, or is missing in mode `replay_or_fail`.
            MachineError: It cannot be written, or another run records into it.
        """
        if mode is CassetteMode.REPLAY_OR_FAIL and not path.is_file():
            raise DataError(f"cassette {path} does not exist; record one first")
        self._path, self._failures = path, failures
        self._file = None if mode is CassetteMode.REPLAY_OR_FAIL else CassetteFile(path)
        known = self._file.entries if self._file else read_cassette(path)
        self._known: dict[str, Entry] = {} if mode is CassetteMode.RECORD else dict(known)
        self._flights = Flights()
        self._is_closing = False

    async def fetch(self, key: CacheKey, make: Callable[[], Awaitable[Json]]) -> Json:
        """The recorded answer or failure; else the outcome of `make`, which is then recorded. See `Cache`.

        Raises:
            ServiceDownError: There is no record, and the mode forbids asking; names the request.
            DataError: The record of a failure is broken.
            MachineError: The outcome cannot be written.
        """
        name = canonical(key)
        if (entry := self._known.get(name)) is not None:
            return self._again(entry)
        if self._file is None:
            raise ServiceDownError(
                f"cassette {self._path} has no answer to {named(key)}, and nothing may be asked"
            )
        return await self._flights.join(name, lambda: self._ask(key, make))

    def remember(self, key: CacheKey, value: Json) -> Json:
        """Record an answer; returns it as later reads will see it.

        Raises:
            MachineError: The answer cannot be written.
        """
        answer: Json = self._add(entry_of(key, "answer", value), canonical(key))["answer"]
        return answer

    async def close(self) -> None:
        """Cancel pending requests without recording them as failures, and sort the file; closing twice is allowed."""
        self._is_closing = True
        await self._flights.close()
        if self._file is not None:
            await asyncio.to_thread(self._file.close)

    async def _ask(self, key: CacheKey, make: Callable[[], Awaitable[Json]]) -> Json:
        try:
            answer = await make()
        except self._failures.kind as error:
            if not self._is_closing:
                self._add(entry_of(key, "failure", self._failures.write(error)), canonical(key))
            raise
        return self.remember(key, answer)

    def _add(self, entry: Entry, name: str) -> Entry:
        if self._file is not None:
            self._file.add(entry)
        self._known[name] = entry
        return entry

    def _again(self, entry: Entry) -> Json:
        if "failure" not in entry:
            answer: Json = entry["answer"]
            return answer
        try:
            error = self._failures.read(entry["failure"])
        except Exception:  # noqa: BLE001 - anyone may have written the file
            raise DataError(
                f"cassette {self._path}: the failure of {entry['request'][:80]!r} is broken"
            ) from None
        raise error
