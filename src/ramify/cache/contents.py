"""Reading a cache as a whole, for listings and exports."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ramify.cache.database import connect_to_read, read_answer, unusable
from ramify.core.errors import DataError
from ramify.core.protocols import Json

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
