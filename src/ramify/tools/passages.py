"""Reading a JSONL file of passages row by row, and splitting text into words."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import DataError

_WORD = re.compile(r"[^\W_]+")
_BLOCK = 1 << 20
_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as it is shown: preceded by its title, if it has one."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class PassageRow:
    """A passage, its position in the file (`number`, from 0), and its collection."""

    number: int
    passage: Passage
    collection: str | None


def words(text: str) -> list[str]:
    """Return the runs of letters and digits after NFKC and case folding."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def is_text(text: str) -> bool:
    """Return False for a string with a lone surrogate: legal in JSON, but not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_passages(path: Path) -> None:
    """Raise DataError unless `path` is a file."""
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {fault}. Expected a JSONL file of passages.")


class PassageReader:
    """Reads the rows of a file once; a line is {"text" or "contents", "id"?, "title"?, "collection"?}.

    Blank lines are skipped. The id of a passage without one is its line number.

    Attributes:
        path: The file.
        bytes: Number of bytes read so far.
        lines: Number of lines read so far.
        passages: Number of passages read so far.
        ends_line: Whether the bytes read so far end with a line break.
    """

    def __init__(self, path: Path) -> None:
        """Start at the first byte of `path`.

        Raises:
            DataError: There is no such file.
        """
        require_passages(path)
        self.path = path
        self.bytes, self.lines, self.passages = 0, 0, 0
        self.ends_line = True
        self._hash = hashlib.blake2b(digest_size=_HASH_BYTES)

    @property
    def fingerprint(self) -> str:
        """Hash of all bytes read so far."""
        return self._hash.hexdigest()

    def skip(self, num_bytes: int, lines: int, passages: int) -> None:
        """Skip the first bytes of the file, with so many lines and passages; they count as read."""
        with self.path.open("rb") as file:
            while self.bytes < num_bytes and (block := file.read(min(_BLOCK, num_bytes - self.bytes))):
                self._count(block)
        self.lines, self.passages = lines, passages

    def rows(self) -> Iterator[PassageRow]:
        """Yield the remaining rows.

        Raises:
            DataError: A line is broken; the message names it.
        """
        with self.path.open("rb") as file:
            file.seek(self.bytes)
            if not self.ends_line:
                self._count(file.readline())  # the line break after the last line that was read
            for line in file:
                self._count(line)
                self.lines += 1
                if line.strip():
                    yield self._read(line)
                    self.passages += 1

    def continues(self) -> bool:
        """Return True if the next byte starts a line, or ends the last line that was read."""
        with self.path.open("rb") as file:
            file.seek(self.bytes)
            return self.ends_line or file.read(1) in (b"\n", b"")

    def _count(self, block: bytes) -> None:
        self.bytes += len(block)
        self._hash.update(block)
        if block:
            self.ends_line = block.endswith(b"\n")

    def _read(self, line: bytes) -> PassageRow:
        where = f"{self.path} row {self.lines} (lines count from 1)"
        try:
            return _row(json.loads(line), self.lines, self.passages)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: broken JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: {error}") from None


def _row(row: object, line: int, number: int) -> PassageRow:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with 'text' or 'contents', got {type(row).__name__}")
    body = _text(row, "text" if "text" in row else "contents")
    if body is None:
        raise ValueError("no 'text' or 'contents'")
    title = _text(row, "title")
    identifier = line if row.get("id") is None else row["id"]
    if isinstance(identifier, bool) or not isinstance(identifier, int | str):
        raise ValueError(f"'id' must be text or a whole number, got {type(identifier).__name__}")
    str(identifier).encode()
    shown = f"{title}: {body}" if title else body
    return PassageRow(number, Passage(str(identifier), shown), _text(row, "collection"))


def _text(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be text, got {type(value).__name__}")
    value.encode()  # refuses a lone surrogate, which is legal in JSON
    return value


Ranked: TypeAlias = tuple[float, Passage]
"""A score (higher is better) and the passage."""
