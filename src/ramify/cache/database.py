"""The file of a cache, SQLite in WAL mode: opening it, writing rows, and reading it as a whole.

Its schema is checked before anything is read or written.
"""

import contextlib
import functools
import os
import shlex
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ramify.cache.keys import decode, encode, row_number_of
from ramify.core.errors import DataError, MachineError, UserError
from ramify.core.protocols import CacheKey, Json

_APPLICATION: Final = 0x526D4379
"""Marks a file as ours ("RmCy")."""
_PLAIN_SCHEMA: Final = 1
SCHEMA: Final = 2
"""The same tables, with failures among the answers. A file gets it with its first failure."""
_BUSY_SECONDS: Final = 30.0
_BUSY_TRIES: Final = 10
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
_PUT: Final = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_SPELLING: Final = (
    "INSERT INTO imported (spelled, place, text) VALUES (?, ?, ?) "
    "ON CONFLICT (spelled) DO UPDATE SET place = excluded.place, text = excluded.text"
)


ANSWER: Final = 0
EMPTY: Final = 1
"""There was nothing to find: None, "", [] or {}."""
FAILURE: Final = 2
"""The answer is the JSON of a failed request."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The outcome of a request.

    Attributes:
        value: The answer, or the failure.
        made_at: Seconds since 1970.
        outcome: `ANSWER`, `EMPTY` or `FAILURE`, as the column `is_empty` has it, which is older than failures.
        size: Characters of its JSON.
    """

    value: Json
    made_at: float
    outcome: int
    size: int


@dataclass(frozen=True, slots=True)
class Row:
    """One entry to write: its key, the key's digest, the entry's JSON, and the entry as memory has it."""

    key: CacheKey
    digest: bytes
    text: str
    entry: Entry

    @classmethod
    def of(
        cls, key: CacheKey, key_digest: bytes, value: Json, made_at: float, *, failed: bool = False
    ) -> "Row":
        """Make the row of an answer, or of a failure; its value is as later reads will see it.

        Raises:
            TypeError, ValueError: The value is not JSON.
        """
        text = encode(value)
        value = decode(text)
        is_empty = value is None or value == "" or value == [] or value == {}
        outcome = FAILURE if failed else EMPTY if is_empty else ANSWER
        return cls(key, key_digest, text, Entry(value, made_at, outcome, len(text)))


Spelling: TypeAlias = tuple[str, bytes, str | None]
"""How an imported file spells a request, the key's digest, and the original text (None if the answer reproduces it)."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a cache, or create it and its folder. Every statement commits on its own.

    Raises:
        DataError: The file is not a cache, is damaged, or has another schema. It is left unchanged.
        MachineError: It cannot be opened or written, or its file system does not let SQLite share it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"cache {path}: its folder cannot be created: {error.strerror}") from None
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return _open(path)
        except sqlite3.Error as error:
            # A process that creates or closes the file locks all of it. SQLite's own timeout does not cover that.
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise unusable(path, error) from None
        time.sleep(0.01)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing cache, even in a read-only folder; raises as `connect` does."""
    file, log, *_ = files_of(path)
    if os.access(file.parent, os.W_OK) or (log.is_file() and log.stat().st_size):
        return connect(path)
    # There is no log, so no process is writing. SQLite would create one even to read; `immutable` prevents that.
    try:
        connection = sqlite3.connect(
            f"{file.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
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
        if _is_new(connection):
            _require_wal(connection, path)
            connection.execute("BEGIN IMMEDIATE")
            if _is_new(connection):  # checked again under the lock: another process may have been faster
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_PLAIN_SCHEMA}")
            connection.execute("COMMIT")
        _require_format(connection, path)
        _require_wal(connection, path)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_new(connection: sqlite3.Connection) -> bool:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    return bool(pages <= 1 and tables == 0 and application == 0)


def _require_wal(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise MachineError(f"cache {path}: SQLite cannot share a file there. Choose a file on a local disk.")


def _require_format(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise DataError(f"cache {path} is an SQLite file of another program. Choose a new file.")
    if version not in (_PLAIN_SCHEMA, SCHEMA):
        raise DataError(
            f"cache {path} has schema {version}, this ramify reads {SCHEMA}. Upgrade ramify or choose a new file."
        )
    if (other := foreign_part(connection, _TABLES)) is not None:
        raise DataError(f"cache {path} holds {other}, which is not part of a cache. Choose a new file.")
    for root in ("answer FROM answers", "text FROM imported"):  # finds damage now rather than during a run
        connection.execute(f"SELECT {root} LIMIT 1").fetchone()


def foreign_part(connection: sqlite3.Connection, statements: str) -> str | None:
    """Return the first difference between a file's schema and the one that `statements` create; None if they are equal.

    A view or a trigger in a file of another origin would run its own queries whenever we read or write the file.
    """
    parts = connection.execute(_PARTS).fetchall()
    expected = _parts_of(statements)
    for row in parts:
        if row not in expected:
            return f"the {row[0]} {str(row[1])[:80]!r}"
    missing = [row for row in expected if row not in parts]
    return f"no {missing[0][0]} {missing[0][1]!r}" if missing else None


@functools.cache
def _parts_of(statements: str) -> tuple[tuple[str, str, str | None], ...]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(statements)
        return tuple(connection.execute(_PARTS))


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file of a cache and the files beside it, SQLite's and ours, whether they exist or not."""
    file = Path(os.path.realpath(path))
    return file, *(file.with_name(file.name + end) for end in ("-wal", "-shm", "-claims"))


def unusable(path: Path, error: sqlite3.Error) -> UserError:
    """Make the error to show the user for an error of SQLite."""
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DataError(
            f"cache {path} is damaged or no cache ({error}), and was left unchanged. "
            "Move it away, or save what can be read with `sqlite3 FILE .recover`."
        )
    file, log, *_ = files_of(path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and not os.access(file.parent, os.W_OK):
        return MachineError(
            f"cache {path}: its folder cannot be written, and SQLite writes a log there. "
            f"Copy the file, and {log.name} if there is one, to a folder that can be written."
        )
    return MachineError(f"cache {path} cannot be used: {error}")


def _primary_code(error: sqlite3.Error) -> int:
    """Return the primary result code of an SQLite error, without its extended part; 0 if it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def write_rows(
    connection: sqlite3.Connection, rows: Sequence[Row], spellings: Iterable[Spelling] = ()
) -> None:
    """Write rows in one transaction; after an error none is in the file.

    Raises:
        sqlite3.Error: The disk is full or fails, or others keep the file locked.
        TypeError, ValueError: The parameters of a key are not JSON.
    """
    for tries_left in reversed(
        range(_BUSY_TRIES)
    ):  # processes that share the file may hold the lock for a while
        try:
            connection.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or not tries_left:
                raise
            time.sleep(0.05)
    try:
        connection.executemany(_PUT, map(_columns, rows))
        columns = (
            (_plain(spelled), row_number_of(key_digest), None if text is None else _plain(text))
            for spelled, key_digest, text in spellings
        )
        connection.executemany(_PUT_SPELLING, columns)
        if any(row.entry.outcome == FAILURE for row in rows):
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _columns(row: Row) -> tuple[object, ...]:
    key, entry = row.key, row.entry
    parameters = encode(dict(sorted(key.parameters.items())))
    readable = (_plain(text) for text in (key.tool, key.provider, parameters, key.request))
    return row_number_of(row.digest), row.digest, *readable, row.text, entry.outcome, entry.made_at


def _plain(text: str) -> str:
    """Escape lone surrogates, which SQLite cannot hold. Lookups go by digest, so nothing depends on this text."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an existing cache for queries. Runs can continue to write to it; its file and folder may be read-only.

    Raises:
        DataError: The file does not exist, is not a cache, or is damaged.
        MachineError: It cannot be read in its folder.
    """
    if not path.is_file():
        raise DataError(
            f"cache {path} does not exist. Correct the path, or make one with ramify cache import."
        )
    with contextlib.closing(connect_to_read(path)) as connection:
        try:
            yield connection
        except sqlite3.Error as error:
            raise unusable(path, error) from None


_GROUPS: Final = """
SELECT tool, provider, parameters, sum(is_empty < 2), sum(is_empty = 1), sum(is_empty = 2),
    min(CAST(made_at AS REAL)), max(CAST(made_at AS REAL))
FROM answers GROUP BY tool, provider, parameters ORDER BY tool, provider, parameters
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Counts for one combination of tool, provider and parameters; times are seconds since 1970."""

    tool: str
    provider: str
    parameters: str
    answers: int
    empty: int
    failures: int
    oldest: float
    newest: float


def read_groups(path: Path) -> list[Group]:
    """Count the entries by tool, provider and parameters, sorted; raises as `open_to_read` does."""
    with open_to_read(path) as connection:
        return [Group(*row) for row in connection.execute(_GROUPS)]


def read_answer(path: Path, row_number: int, text: str) -> Json:
    """Read the answer of a row.

    Raises:
        DataError: It is not JSON, so we did not write the row.
    """
    try:
        return decode(text)
    except Exception:  # noqa: BLE001 - anyone may have written the file
        raise _broken_row(path, row_number) from None


def read_entry(path: Path, row_number: int, text: str, outcome: int, made_at: float) -> Entry:
    """Read the entry of a row; raises as `read_answer` does."""
    if not isinstance(made_at, float) or outcome not in (ANSWER, EMPTY, FAILURE):
        raise _broken_row(path, row_number)
    return Entry(read_answer(path, row_number, text), made_at, outcome, len(text))


def _broken_row(path: Path, row_number: int) -> DataError:
    return DataError(
        f"cache {path}: the answer at place {row_number} is no JSON, or its time no number. Remove it, so that it is requested again: "
        f'sqlite3 {shlex.quote(str(path))} "DELETE FROM answers WHERE place = {row_number}"'
    )
