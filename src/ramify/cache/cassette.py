"""Caches that record what services answer, and give it back without asking."""

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
    """Ask once in a run, and write down what comes, in place of what was there."""
    REPLAY = "replay"
    """Answer from the file; ask for what is not there, and add it."""
    REPLAY_OR_FAIL = "replay_or_fail"
    """Answer from the file; never ask."""


@dataclass(frozen=True, slots=True)
class FailureForm:
    """How a failed request is written down.

    Attributes:
        kind: Of the errors that are recorded; all others pass.
        write: An error as JSON.
        read: The error of such JSON.
    """

    kind: type[Exception]
    write: Callable[[Any], Json]
    read: Callable[[Json], Exception]


class Cassette:
    """A `Cache` in a file of its own, in which failed requests are kept as well: a replay meets them again.

    Nothing grows old. One run records into a file at a time; any number may `replay_or_fail`.
    """

    def __init__(self, path: Path, mode: CassetteMode, failures: FailureForm) -> None:
        """Open the file.

        Raises:
            DataError: It is no cassette, is broken, or is missing where nothing may be asked.
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
        """The recorded answer or failure, or that of `make`, which is then recorded. See `Cache`.

        Raises:
            ServiceDownError: It is not there, and nothing may be asked; names the request.
            DataError: The record of a failure is broken.
            MachineError: It cannot be written down.
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
        """Record an answer; gives it as it will be read.

        Raises:
            MachineError: It cannot be written down.
        """
        answer: Json = self._add(entry_of(key, "answer", value), canonical(key))["answer"]
        return answer

    async def close(self) -> None:
        """Cancel what is under way and put the file in order; closing twice is allowed. No failure is recorded then."""
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
        except Exception:  # noqa: BLE001 - of a file that anyone may have written
            raise DataError(
                f"cassette {self._path}: the failure of {entry['request'][:80]!r} is broken"
            ) from None
        raise error
