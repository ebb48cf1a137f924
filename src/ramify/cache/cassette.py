"""A cache that records the answers of services in a file and replays them without asking.

The file is JSON lines, one recorded request each, sorted by key; the first line names the format. While recording, each
answer is appended as it arrives, so a kill loses no answer that had arrived. Closing sorts the file. A last line that
was cut off is ignored.
"""

import asyncio
import fcntl
import json
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

from ramify.cache.keys import Flights, canonical, encode, named
from ramify.core.errors import DataError, MachineError, ServiceDownError
from ramify.core.protocols import CacheKey, Json

SCHEMA: Final = 1
_HEADER: Final[Mapping[str, str | int]] = {"format": "ramify cassette", "schema": SCHEMA}
_HEAD_BYTES: Final = 4096
_SQLITE: Final = b"SQLite format 3\0"
_FIELDS: Final = ("tool", "provider", "parameters", "request")
_DEEP: Final = 400
"""An entry with at most this many brackets cannot nest too deep; only others are checked."""
_MARGIN: Final = 200
"""Nesting kept in reserve: the code that writes an entry may run deeper in the call stack than the code that reads it."""
Entry: TypeAlias = Mapping[str, Any]
"""Tool, provider, parameters, request, and either "answer" or "failure"."""


def entry_of(key: CacheKey, kind: str, value: Json) -> Entry:
    """The entry for a request, as later reads will see it; `kind` is "answer" or "failure"."""
    return {**dict(zip(_FIELDS, json.loads(canonical(key)), strict=True)), kind: json.loads(encode(value))}


def is_cassette(path: Path) -> bool:
    """Whether a readable file begins with the header of a cassette."""
    with path.open("rb") as file:
        return file.readline().rstrip(b"\n") == encode(_HEADER).encode()


def read_cassette(path: Path) -> dict[str, Entry]:
    """All entries by canonical key; the later of two with the same key wins. Empty if there is no file.

    Raises:
        DataError: The file is not a cassette, has another schema, or has a broken line; names the line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"cassette {path} cannot be read: {error.strerror}") from None
    _require_cassette(path, content)
    lines = content.split(b"\n")
    entries: dict[str, Entry] = {}
    for number, line in enumerate(lines[:-1], 1):  # the last piece is empty, or a line that was cut off
        if number > 1:
            entry = _read_entry(path, number, line)
            entries[_name(entry)] = entry
    return entries


class CassetteFile:
    """A cassette that one run writes."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and sort what a killed run left behind.

        Raises:
            DataError: The file is not a cassette, or is broken; it is left as it is.
            MachineError: The file cannot be written, or another run is writing it.
        """
        self._path = path
        try:
            if path.is_file():  # checked first, so that no lock file appears beside a foreign file
                with path.open("rb") as file:
                    _require_cassette(path, file.read(_HEAD_BYTES))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(
                path.with_name(path.name + "-lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.entries = read_cassette(path)
            self._order()
            self._file = path.open("ab", buffering=0)
        except BlockingIOError:
            os.close(self._lock)
            raise MachineError(
                f"cassette {path} is being written by another run; name another file"
            ) from None
        except OSError as error:
            os.close(self._lock)
            raise self._unwritable(error) from None
        except DataError:
            os.close(self._lock)
            raise

    def add(self, entry: Entry) -> None:
        """Append an entry.

        Raises:
            MachineError: The disk is full or fails. Earlier entries are kept.
        """
        self.entries[_name(entry)] = entry
        line = _line(entry)
        try:
            if self._file.write(line) != len(line):
                raise OSError(0, "the disk is full")
        except OSError as error:
            raise self._unwritable(error) from None

    def close(self) -> None:
        """Sort the file; closing twice is allowed.

        Raises:
            MachineError: The disk is full or fails. All entries are kept, unsorted.
        """
        if self._file.closed:
            return
        self._file.close()
        try:
            self._order()
        except OSError as error:
            raise self._unwritable(error) from None
        finally:
            os.close(self._lock)

    def _order(self) -> None:
        """Rewrite the file sorted, unless it already is."""
        lines = [encode(_HEADER).encode() + b"\n"]
        lines += (_line(self.entries[name]) for name in sorted(self.entries))
        whole = b"".join(lines)
        if self._path.exists() and self._path.read_bytes() == whole:
            return
        unfinished = self._path.with_name(self._path.name + ".part")
        with unfinished.open("wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path)

    def _unwritable(self, error: OSError) -> MachineError:
        return MachineError(f"cassette {self._path} cannot be written: {error.strerror}")


def _require_shallow(entry: Entry) -> None:
    """Raise RecursionError for an entry nested so deep that code deeper in the call stack could not write it."""
    wrapped: Json = dict(entry)
    for _ in range(_MARGIN):
        wrapped = [wrapped]
    encode(wrapped)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that cannot be written again")
    return number


_READER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
"""Refuses NaN and infinities, which are not JSON."""


def _line(entry: Entry) -> bytes:
    return encode(entry).encode() + b"\n"


def _name(entry: Entry) -> str:
    return canonical(CacheKey(*(entry[field] for field in _FIELDS)))


def _require_cassette(path: Path, head: bytes) -> None:
    if head.startswith(_SQLITE):
        raise DataError(
            f'{path} is a cache, a cassette is expected here; to use it as a cache, set its mode = "cache"'
        )
    line, end, _ = head.partition(b"\n")
    if not end and encode(_HEADER).encode().startswith(line):
        return  # an empty file, or one whose first line was cut off
    try:
        header = json.loads(line)
        is_ours = header["format"] == _HEADER["format"]
        schema = header["schema"]
    except Exception:  # noqa: BLE001 - of a file that anyone may have written
        is_ours, schema = False, 0
    if not is_ours:
        raise DataError(f"{path} is no cassette of ramify; name another file")
    if schema != SCHEMA:
        raise DataError(f"cassette {path} has schema {schema}, this ramify reads {SCHEMA}; upgrade ramify")


def _read_entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        entry = _READER.decode(line.decode())
        is_whole = all(isinstance(entry[field], str) for field in ("tool", "provider", "request"))
        is_whole = (
            is_whole and isinstance(entry["parameters"], dict) and ("answer" in entry) != ("failure" in entry)
        )
        if line.count(b"[") + line.count(b"{") > _DEEP:
            _require_shallow(entry)
    except Exception:  # noqa: BLE001 - of a file that anyone may have written
        is_whole = False
    if not is_whole:
        raise DataError(
            f"cassette {path}, line {number}: expected tool, provider, parameters, request and answer or failure"
        )
    return dict(entry)


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
