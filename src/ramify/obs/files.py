"""Files that appear at once or not at all, and JSON lines whose unreadable rows are named."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError, DataError

LOCK = ".lock"


def dump_line(record: object) -> str:
    """One line of JSON. ASCII only, so that any text (lone surrogates too) comes back as it was.

    Raises:
        TypeError: A value that JSON does not know.
        ValueError: NaN or an infinity.
    """
    return json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def require_new_folder(key: str, path: Path) -> None:
    """Check that results may go to `path`; `key` names the setting in the message.

    Raises:
        ConfigError: It exists and is not an empty folder.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{key}: {path} exists and is not empty; expected a new or empty folder")


def make_folder(key: str, path: Path) -> None:
    """Make a folder and those above it; `key` names the setting in the message.

    Raises:
        ConfigError: It cannot be made, or nothing can be written into it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: {path} cannot be written")


@contextmanager
def locked_folder(key: str, path: Path) -> Iterator[None]:
    """Hold a folder for this process alone while the block runs; `key` names the setting in the message.

    Raises:
        ConfigError: Another process has it.
    """
    with (path / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{key}: {path} is in use by another process") from None
        yield


@contextmanager
def claimed_folder(key: str, path: Path) -> Iterator[None]:
    """Make a folder, hold it as `locked_folder` does, and leave none behind that nothing was put into.

    Raises:
        ConfigError: It cannot be made or written, or another process has it.
    """
    is_new = not path.exists()
    make_folder(key, path)
    with locked_folder(key, path):
        try:
            yield
        finally:
            if [entry.name for entry in path.iterdir()] == [LOCK]:
                (path / LOCK).unlink()
                if is_new:
                    path.rmdir()


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file beside `path`, then rename it: a kill leaves the old file or the new one."""
    replace_pieces(path, (content,))


def replace_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """As `replace_file`, for content that is too large to be held as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a whole file of lines (see `replace_file`)."""
    replace_file(path, "".join(line + "\n" for line in lines).encode("ascii"))


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        DataError: The file does not exist or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8 text") from None


def parse_line(path: Path, row: int, line: str) -> dict[str, Any]:
    """Read one line; `row` counts from 1.

    Raises:
        DataError: The line is cut off, is not JSON or is not an object.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} row {row}: the line is cut off or not JSON ({error.msg} at column {error.colno})"
        ) from None
    if not isinstance(record, dict):
        raise DataError(f"{path} row {row}: expected a JSON object, found {type(record).__name__}")
    return record
