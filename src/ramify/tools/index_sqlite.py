"""BM25 over passages with SQLite's FTS5, for machines without tantivy: the same words, a slower search."""

import shutil
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from ramify.cache.database import foreign_part
from ramify.core.errors import MachineError
from ramify.tools.passages import Passage, PassageRow, Ranked, words

_FILE = "passages.sqlite"
_TABLES = """
    CREATE TABLE passages (number INTEGER PRIMARY KEY, id TEXT NOT NULL, shown TEXT NOT NULL, collection TEXT);
    CREATE VIRTUAL TABLE ranked USING fts5 (text, content = '', tokenize = 'ascii');
"""
_SEARCH = """
    SELECT ranked.rank, passages.id, passages.shown FROM ranked JOIN passages ON passages.number = ranked.rowid
    WHERE ranked MATCH :query AND (:collection IS NULL OR passages.collection = :collection)
    ORDER BY ranked.rank, passages.number LIMIT :top_k
"""


class SqliteIndex:
    """Implements `RankedIndex`.

    Words are stored with blanks between them, so that the tokenizer `ascii` splits them again at the blanks.
    """

    NAME = "sqlite"
    VERSION = sqlite3.sqlite_version
    BROKEN: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
    """The errors SQLite raises for files that it cannot read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        (self._num,) = connection.execute("SELECT coalesce(max(number) + 1, 0) FROM passages").fetchone()

    @classmethod
    def create(cls, folder: Path | None, rows: Iterable[PassageRow], text_bytes: int) -> Self:  # noqa: ARG003
        """Index `rows` in an empty folder, or in memory (None).

        Raises:
            MachineError: This Python's SQLite has no FTS5.
        """
        connection = _connect(":memory:" if folder is None else str(folder / _FILE))
        try:
            connection.executescript(_TABLES)
        except sqlite3.OperationalError as error:
            connection.close()
            if "no such module" not in str(error):
                raise
            raise MachineError(
                f"local search needs tantivy or SQLite with FTS5 ({error}): pip install tantivy"
            ) from None
        return cls(_add(connection, rows))

    @classmethod
    def extend(cls, folder: Path, rows: Iterable[PassageRow], text_bytes: int) -> Self:  # noqa: ARG003
        """Add `rows` to the index in `folder`."""
        return cls(_add(_connect(str(folder / _FILE)), rows))

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the index in `folder`."""
        connection = _connect(f"{(folder / _FILE).absolute().as_uri()}?mode=ro&immutable=1")
        if (other := foreign_part(connection, _TABLES)) is not None:
            connection.close()
            raise sqlite3.DatabaseError(f"it holds {other}")
        return cls(connection)

    @staticmethod
    def copy_file(source: str, target: str) -> str:
        """Copy the file, since `extend` changes it."""
        return shutil.copyfile(source, target)

    def __len__(self) -> int:
        return int(self._num)

    def search(self, query: Sequence[str], top_k: int, collection: str | None) -> tuple[Ranked, ...]:
        """The `top_k` best passages that contain a word of `query`, best first; ties in file order."""
        asked = " OR ".join(f'"{word}"' for word in query)
        with self._turn:
            found = self._connection.execute(
                _SEARCH, {"query": asked, "collection": collection, "top_k": top_k}
            ).fetchall()
        return tuple((-rank, Passage(identifier, shown)) for rank, identifier, shown in found)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _connect(place: str) -> sqlite3.Connection:
    return sqlite3.connect(place, uri=place.startswith("file:"), check_same_thread=False)


def _add(connection: sqlite3.Connection, rows: Iterable[PassageRow]) -> sqlite3.Connection:
    try:
        with connection:
            for row in rows:
                shown = row.passage.text
                connection.execute(
                    "INSERT INTO passages VALUES (?, ?, ?, ?)",
                    (row.number, row.passage.id, shown, row.collection),
                )
                connection.execute(
                    "INSERT INTO ranked (rowid, text) VALUES (?, ?)", (row.number, " ".join(words(shown)))
                )
    except BaseException:
        connection.close()
        raise
    return connection
