"""Files of JSON lines that grow while attempts are made: one line for each, keyed by (problem, attempt)."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, count, text
from ramify.files.durable import append_line, dump_line, parse_line, replace_pieces

Key: TypeAlias = tuple[str, int]
"""Id of a problem, number of the attempt."""


@dataclass(frozen=True, slots=True)
class _Line:
    row: int
    start: int
    size: int


class KeyedLines:
    """A file with one line for each attempt, written when the attempt ends.

    A killed process loses at most the line that it was writing; only a crash of the machine can lose more. The file may
    be larger than memory: all methods except `read` process it line by line.
    """

    def __init__(self, path: Path, key_of: Callable[[Mapping[str, Any]], Key]) -> None:
        """`key_of` returns the key of a line; it raises KeyError, TypeError or FieldError if there is none."""
        self.path, self._key_of = path, key_of

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line.

        Raises:
            ValueError: A number is not finite.
        """
        append_line(self.path, record, synced=False)

    def read(self) -> dict[Key, dict[str, Any]]:
        """Return all complete lines by key; a last line that was cut off is ignored.

        Raises:
            DataError: A line cannot be read, or two lines have the same key; names file and row.
        """
        return {key: record for key, _, record in self._lines()}

    def each(self) -> Iterator[tuple[Key, dict[str, Any]]]:
        """Yield key and record of all complete lines, one by one; raises as `read`."""
        return ((key, record) for key, _, record in self._lines())

    def keys(self) -> frozenset[Key]:
        """Return the keys of all complete lines; raises as `read`."""
        return frozenset(key for key, _, _ in self._lines())

    def keep(self, keys: Set[Key]) -> None:
        """Drop all lines with other keys, and a last line that was cut off; raises as `read`."""
        self._rewrite([(line, None) for key, line, _ in self._lines() if key in keys])

    def sort(self, keys: Sequence[Key]) -> None:
        """Put the lines into this order, and drop those with other keys; raises as `read`."""
        lines = {key: line for key, line, _ in self._lines()}
        self._rewrite([(lines[key], None) for key in keys if key in lines])

    def update(self, records: Mapping[Key, Mapping[str, Any]]) -> None:
        """Replace the lines with these keys; raises as `read`."""
        self._rewrite([(line, records.get(key)) for key, line, _ in self._lines()])

    def texts(self, keys: Set[Key]) -> dict[Key, tuple[int, str]]:
        """Row (from 1) and text of the lines with these keys; raises as `read`."""
        return {key: (line.row, dump_line(record)) for key, line, record in self._lines() if key in keys}

    def _lines(self) -> Iterator[tuple[Key, _Line, dict[str, Any]]]:
        if not self.path.exists():
            return
        if not self.path.is_file():
            raise DataError(f"{self.path} is a folder, expected a file of JSON lines")
        rows: dict[Key, int] = {}
        start = 0
        with self.path.open("rb") as file:
            for row, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    return
                try:
                    record = parse_line(self.path, row, raw.decode())
                    key = self._key_of(record)
                except UnicodeDecodeError:
                    raise DataError(f"{self.path} row {row}: the line is not UTF-8 text") from None
                except (KeyError, TypeError, FieldError):
                    raise DataError(
                        f"{self.path} row {row}: expected a line with the problem and the number of an attempt"
                    ) from None
                if key in rows:
                    raise DataError(
                        f"{self.path} row {row}: attempt {key[1]} at problem {key[0]!r} is in row {rows[key]} already; "
                        "delete one of the two lines"
                    )
                rows[key] = row
                yield key, _Line(row, start, len(raw)), record
                start += len(raw)

    def _rewrite(self, lines: Sequence[tuple[_Line, Mapping[str, Any] | None]]) -> None:
        """Rewrite the file with these lines or their replacements; a kill leaves either the old file or the new one."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:

            def pieces() -> Iterator[bytes]:
                for line, record in lines:
                    if record is not None:
                        yield f"{dump_line(record)}\n".encode()
                        continue
                    file.seek(line.start)
                    yield file.read(line.size)

            replace_pieces(self.path, pieces())


def key_of(problem: object, attempt: object) -> Key:
    """Return the key of a line.

    Raises:
        FieldError: It is none.
    """
    return text(problem), count(attempt)
