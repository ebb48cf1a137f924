"""The cache's file, SQLite in WAL mode: opening it, and reading it as a whole for listings and exports.

Its schema is checked before anything is read or written.
"""

import functools
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ramify.cache.cassette import is_cassette
from ramify.cache.keys import decode
from ramify.core.errors import DataError, MachineError, UserError
from ramify.core.protocols import Json

_APPLICATION: Final = 0x526D4379
"""Marks a file as ours ("RmCy")."""
SCHEMA: Final = 1
_BUSY_SECONDS: Final = 30.0
_TABLES: Final = """
CREATE TABLE answers (
    place INTEGER PRIMARY KEY,  -- the first 62 bits of the key: found faster than by all of it
    key BLOB NOT NULL,          -- SHA-256 of the canonical key
    tool TEXT NOT NULL,         -- these four are for people
    provider TEXT NOT NULL,
    parameters TEXT NOT NULL,   -- JSON
    request TEXT NOT NULL,      -- normalised
    answer TEXT NOT NULL,       -- JSON
    is_empty INTEGER NOT NULL,  -- 1: there was nothing to find
    made_at REAL NOT NULL       -- seconds since 1970
);
CREATE TABLE imported (         -- what an export gives back as it came
    position INTEGER PRIMARY KEY,
    spelled TEXT NOT NULL UNIQUE,
    place INTEGER NOT NULL,
    text TEXT                   -- NULL: the answer, formatted, is the text
);
"""
_PARTS: Final = "SELECT type, name, sql FROM sqlite_schema"


def connect(path: Path) -> sqlite3.Connection:
    """Open a cache, or create it. Every statement commits on its own.

    Raises:
        DataError: The file is not a cache, is damaged, or has another schema. It is left as it is.
        MachineError: It cannot be opened or written, or its file system does not let SQLite share it.
    """
    give_up = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return _open(path)
        except sqlite3.Error as error:
            # A process that creates or closes the file locks all of it. SQLite's own timeout does not cover that.
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise unusable(path, error) from None
        time.sleep(0.01)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing cache, even in a read-only folder; raises as `connect` does."""
    file, log, *_ = files_of(path)
    if os.access(file.parent, os.W_OK) or (log.is_file() and log.stat().st_size):
        return connect(path)
    # There is no log, so nobody is writing. SQLite would create one even to read; `immutable` prevents that.
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
        try:
            _require_format(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise unusable(path, error) from None
    return connection


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    if _is_new(connection):
        _require_wal(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        if _is_new(connection):  # checked again under the lock: another process may have been faster
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    _require_format(connection, path)
    _require_wal(connection, path)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 67108864")


def _require_format(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise DataError(f"cache {path} is an SQLite file of another program; name a new file")
    if version != SCHEMA:
        raise DataError(
            f"cache {path} has schema {version}, this ramify reads {SCHEMA}; upgrade ramify or name a new file"
        )
    if (other := _foreign_part(connection, _TABLES)) is not None:
        raise DataError(
            f"cache {path} holds {other}, which is not a cache's; it is not used, name a new file"
        )
    for root in ("answer FROM answers", "text FROM imported"):  # finds damage now rather than during a run
        connection.execute(f"SELECT {root} LIMIT 1").fetchone()


def _foreign_part(connection: sqlite3.Connection, statements: str) -> str | None:
    """The first difference between a file's schema and the one that `statements` create; None if they are equal.

    A view or a trigger in a file from somebody else would run its own queries whenever we read or write the file.
    """
    found = connection.execute(_PARTS).fetchall()
    expected = _parts_of(statements)
    for row in found:
        if row not in expected:
            return f"the {row[0]} {str(row[1])[:80]!r}"
    missing = [row for row in expected if row not in found]
    return f"no {missing[0][0]} {missing[0][1]!r}" if missing else None


@functools.cache
def _parts_of(statements: str) -> tuple[tuple[str, str, str | None], ...]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(statements)
        return tuple(connection.execute(_PARTS))
    finally:
        connection.close()


def _is_new(connection: sqlite3.Connection) -> bool:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    return bool(pages <= 1 and tables == 0 and application == 0)


def _require_wal(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise MachineError(f"cache {path}: SQLite cannot share a file there; name one on a local disk")


def files_of(path: Path) -> tuple[Path, ...]:
    """The file of a cache and the files SQLite and we keep beside it, whether they exist or not."""
    file = Path(os.path.realpath(path))
    return file, *(file.with_name(file.name + end) for end in ("-wal", "-shm", "-claims"))


def unusable(path: Path, error: sqlite3.Error) -> UserError:
    """The error to show the user for an error of SQLite."""
    if primary_code(error) == sqlite3.SQLITE_NOTADB and is_cassette(path):
        return DataError(
            f"{path} is a cassette, a cache is expected here; to use a cassette, "
            "set its mode to record, replay or replay_or_fail"
        )
    if primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DataError(
            f"cache {path} is damaged or no cache ({error}); it was left as it is: "
            "move it away, or save what can be read with `sqlite3 FILE .recover`"
        )
    file, log, *_ = files_of(path)
    if primary_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and not os.access(
        file.parent, os.W_OK
    ):
        return MachineError(
            f"cache {path}: its folder cannot be written, and SQLite keeps a log there; "
            f"copy the file, and {log.name} if there is one, to a folder that can be written"
        )
    return MachineError(f"cache {path} cannot be used: {error}")


def read_answer(path: Path, place: int, text: str) -> Json:
    """The answer of a row.

    Raises:
        DataError: It is not JSON, so we did not write the row.
    """
    try:
        return decode(text)
    except Exception:  # noqa: BLE001 - anyone may have written the file
        raise broken_row(path, place) from None


def broken_row(path: Path, place: int) -> DataError:
    """The error to show the user for a row that we did not write."""
    return DataError(
        f"cache {path}: the answer at place {place} is no JSON, or its time no number; remove it, so that it is asked for again: "
        f'sqlite3 {shlex.quote(str(path))} "DELETE FROM answers WHERE place = {place}"'
    )


def primary_code(error: sqlite3.Error) -> int:
    """The primary result code of an SQLite error, without its extended part; 0 if it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_IMPORTED: Final = """
SELECT spelled, text, place, answer FROM imported JOIN answers USING (place) ORDER BY position
"""
_NOT_IMPORTED: Final = """
SELECT request, place, answer FROM answers
WHERE tool = ? AND place NOT IN (SELECT place FROM imported) ORDER BY request, place
"""
_GROUPS: Final = """
SELECT tool, provider, parameters, count(*), sum(is_empty), min(CAST(made_at AS REAL)), max(CAST(made_at AS REAL)) FROM answers
GROUP BY tool, provider, parameters ORDER BY tool, provider, parameters
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Counts for one combination of tool, provider and parameters; times are seconds since 1970."""

    tool: str
    provider: str
    parameters: str
    answers: int
    empty: int
    oldest: float
    newest: float


class Contents:
    """An existing cache, open for reading. Runs can go on writing to it; its file and folder may be read-only."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            DataError: The file does not exist, or is not a cache.
            MachineError: It cannot be read in its folder.
        """
        if not path.is_file():
            raise DataError(f"cache {path} does not exist")
        self._path = path
        self._connection = connect_to_read(path)

    def __enter__(self) -> "Contents":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def groups(self) -> list[Group]:
        """One count for each tool, provider and parameters, sorted."""
        return [Group(*row) for row in self._rows(_GROUPS)]

    def imported(self) -> Iterator[tuple[str, str | None, Json]]:
        """(query as the file spelled it, original text or None, answer), in the order of import.

        The text is None where the formatted answer reproduces it.
        """
        for spelled, text, place, answer in self._rows(_IMPORTED):
            yield spelled, text, read_answer(self._path, place, answer)

    def not_imported(self, tool: str) -> Iterator[tuple[str, Json]]:
        """(request, answer) of all answers of `tool` that were not imported, sorted by request."""
        for request, place, answer in self._rows(_NOT_IMPORTED, tool):
            yield request, read_answer(self._path, place, answer)

    def _rows(self, query: str, *values: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(query, values)
        except sqlite3.Error as error:
            raise unusable(self._path, error) from None
