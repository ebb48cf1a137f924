"""The rows of data files: JSON lines, one JSON array, parquet, tables in text; files are streamed."""

import csv
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError, RowError, RowTooLargeError
from ramify.core.json_text import parse_json

JSONL_COUNTING, PARQUET_COUNTING, ARRAY_COUNTING = (
    "lines count from 1",
    "rows count from 0",
    "rows count from 1",
)
"""Numbering of the rows of a file in error messages."""


def counting(path: Path) -> str:
    """Return how the rows of a file are numbered."""
    if path.suffix == ".parquet":
        return PARQUET_COUNTING
    return JSONL_COUNTING if path.suffix == ".jsonl" else ARRAY_COUNTING


FILE_KINDS = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
"""What a file of rows may be called."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}

MAX_ROW_BYTES = 32 << 20
"""Limit of an example's JSON text: far above what a model's context holds. A larger row is skipped unread."""

_CHUNK = 1 << 20
_DEEPEST = 10_000
"""Nesting at which an array is refused: no text of a person has it."""
_ARRAY_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?[ \t]*\[[ \t]*(?:\r?\n|\{.*[^\]\s]\s*$)")
"""The first line of an array of rows that goes on in the next line."""
_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""What remains of a string, up to its quote."""


def read_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a .jsonl, .json (one array), .parquet, .csv or .tsv file with their numbers, from 1 (parquet: from 0).

    A row that cannot be read is yielded as its RowError, and reading continues with the next one.

    Raises:
        DataError: There is no such file, or it cannot be read from some row on; names it.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected a file, found none")
    if path.suffix == ".parquet":
        yield from read_parquet(path)
        return
    if path.suffix in _DELIMITERS:
        yield from _read_cells(path)
        return
    texts = {".jsonl": _lines, ".json": _elements}.get(path.suffix)
    if texts is None:
        raise DataError(
            f"{path}: unknown kind of file {path.suffix!r}; expected .jsonl, .json (one array), .parquet, .csv or .tsv"
        )
    for number, text in texts(path):
        yield number, _parsed(text)


def _parsed(text: bytes | None) -> Any:  # noqa: ANN401 - any JSON value, or the error in its place
    if text is None:
        return RowTooLargeError(f"more than {MAX_ROW_BYTES >> 20} MiB")
    try:
        return parse_json(text.strip(), unique_keys=True)
    except ValueError as error:
        reason, colon, detail = str(error).partition(": ")
        return RowError(reason, detail) if colon else RowError(reason)


def read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a table with numbers from 0.

    Raises:
        DataError: The file cannot be read.
    """
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        columns: list[str] = table.schema_arrow.names
        batches = table.iter_batches(batch_size=1024)
        first = next(batches, None)
    # Foreign files: report anything that is wrong with them in one line.
    except Exception as error:  # noqa: BLE001
        raise DataError(f"{path}: not a readable parquet file: {_first_line(error)}") from None
    _require_one_of_each(path, columns)
    number, batch = 0, first
    while batch is not None:
        last = number + batch.num_rows - 1
        try:
            values, batch = batch.to_pylist(), next(batches, None)
        # Values that Python cannot represent: dates out of range, text that is not UTF-8. Or damage further on.
        except Exception as error:  # noqa: BLE001
            raise DataError(
                f"{path} rows {number} to {last} ({PARQUET_COUNTING}) or after them: cannot be read: {_first_line(error)}"
            ) from None
        for row in values:
            yield number, row
            number += 1


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _read_cells(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a table in text as records of texts; an empty cell is null, and a column without a name is left out.

    Raises:
        DataError: The quotes or the encoding are wrong, or two columns have one name.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=_DELIMITERS[path.suffix], strict=True)
            names = next(rows, [])
            _require_one_of_each(path, [name for name in names if name])
            for cells in filter(None, rows):
                number += 1
                if len(cells) == len(names):
                    pairs = zip(names, cells, strict=True)
                    yield number, {name: cell or None for name, cell in pairs if name}
                else:
                    yield number, RowError(f"not {len(names)} cells, as the first line has", f"{len(cells)}")
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} row {number + 1} ({ARRAY_COUNTING}) or after it: cannot be read: {error}"
        ) from None


def _require_one_of_each(path: Path, columns: list[str]) -> None:
    for name in columns:
        if columns.count(name) > 1:
            raise DataError(f"{path}: two columns are called {name!r}. Rename one of them.")


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines that are not blank, with their numbers; None for one that is too large."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_ROW_BYTES):
            number += 1
            if len(line) < MAX_ROW_BYTES:
                if number == 1 and _ARRAY_HEAD.match(line):
                    raise DataError(
                        f"{path}: expected a JSON object a line, the first line begins an array. Name a file that is one array "
                        "of rows .json"
                    )
                if line.strip():
                    yield number, line
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(_CHUNK)
            yield number, None


def _elements(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield the texts of an array's elements with their numbers; None for one that is too large.

    Raises:
        DataError: The file is no array, or the array does not end where the file does.
    """
    array = _Array(path)
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        while chunk := file.read(_CHUNK):
            # An escape is not cut in two.
            while chunk.endswith(b"\\") and (more := file.read(_CHUNK)):
                chunk += more
            yield from array.read(chunk)
    array.finish()


class _Array:
    """Finds where the elements of an array end, by brackets, commas and quotes alone, chunk by chunk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number, self._depth, self._in_string = 0, 0, False
        self._held, self._size = bytearray(), 0

    def read(self, chunk: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the elements that end in this chunk."""
        start = position = 0 if self._number else self._first_element(chunk)
        while position < len(chunk):
            if self._in_string:
                inside = _INSIDE.match(chunk, position)
                assert inside is not None
                position = inside.end()
                self._in_string = position == len(chunk)
                position += 1
                continue
            match = _OUTSIDE.search(chunk, position)
            if match is None:
                break
            mark, position = match[0], match.end()
            if self._depth == 0:
                raise DataError(f"{self._path}: expected nothing after the array")
            self._in_string = mark == b'"'
            self._depth += (mark in b"[{") - (mark in b"]}")
            if self._depth > _DEEPEST:
                raise DataError(f"{self._path} row {self._number}: nested more than {_DEEPEST:,} deep")
            if self._depth == 0 or (self._depth == 1 and mark == b","):
                self._hold(chunk[start : position - 1])
                start = position
                yield from self._finished(mark)
        self._hold(chunk[start:])

    def finish(self) -> None:
        """Check that the array has ended.

        Raises:
            DataError: It has not.
        """
        if self._number == 0:
            raise DataError(f"{self._path}: expected an array of rows, the file is empty")
        if self._depth or self._held.strip():
            where = (
                f" row {self._number}: the array does not end"
                if self._depth
                else ": expected nothing after the array"
            )
            raise DataError(f"{self._path}{where}")

    def _first_element(self, chunk: bytes) -> int:
        """Return the position at which the first element begins."""
        head = chunk.lstrip()
        if not head:
            return len(chunk)
        if not head.startswith(b"["):
            raise DataError(
                f"{self._path}: expected one JSON array of rows, it begins with {head[:1].decode(errors='replace')!r}. If each "
                "line is a row, name the file .jsonl"
            )
        self._number = self._depth = 1
        return len(chunk) - len(head) + 1

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= MAX_ROW_BYTES:
            self._held += part
        else:
            self._held.clear()

    def _finished(self, mark: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the element that ends with this mark; an empty array has none."""
        if mark == b"}":
            raise DataError(f"{self._path} row {self._number}: }} closes nothing")
        text = bytes(self._held)
        if mark == b"," or self._number > 1 or self._size > len(text) or text.strip():
            yield self._number, text if self._size <= MAX_ROW_BYTES else None
        self._number += 1
        self._held.clear()
        self._size = 0


def read_text_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a text file of any name, each with its file and number for messages.

    A file that begins with a bracket is one array, any other has a row in each line. A row that cannot be read is yielded as its
    RowError.

    Raises:
        DataError: The array breaks off.
    """
    with path.open("rb") as file:
        head = file.read(_CHUNK).removeprefix(BOM_UTF8).lstrip()
    texts, word = (_elements(path), "row") if head.startswith(b"[") else (_lines(path), "line")
    for number, text in texts:
        yield f"{path}, {word} {number}", _parsed(text)
