"""Files that survive a crash, JSON with errors that name the row, and folders without links.

A file is written under another name, synced and renamed, so that a kill or a power cut leaves the old file or the new
one. Every OSError that this module raises names its file.
"""

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ramify.core.errors import ConfigError, DataError
from ramify.core.json_text import MAX_DEPTH, parse_json
from ramify.core.json_types import Reader
from ramify.files.untrusted import read_small_file

T = TypeVar("T")

LOCK = ".lock"
RECIPE = "recipe.toml"
"""The recipe of a run: a folder with results and without it was not made by this version."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_NO_SYNC = (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP)
"""Errors of disks that have no locks (Lustre and NFS under some options), or cannot flush a folder (some network disks)."""

UNFINISHED = ".part"
"""Suffix of a file that is being written; a kill may leave one behind, and the next write replaces it."""


def dump_line(record: object) -> str:
    """Return one line of JSON. It is ASCII only, so that any text (lone surrogates too) is read back unchanged.

    Raises:
        TypeError: A value that JSON cannot represent.
        ValueError: NaN or an infinity.
    """
    return json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def require_new_folder(key: str, path: Path) -> None:
    """Check that results may go to `path`; `key` names the setting in the message.

    Raises:
        ConfigError: It exists and is not an empty folder.
    """
    if path.exists() and (not path.is_dir() or entries(path)):
        raise ConfigError(f"{key}: {path} exists and is not empty; expected a new or empty folder")


def make_folder(key: str, path: Path) -> None:
    """Create a folder and those above it; `key` names the setting in the message.

    Raises:
        ConfigError: It cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{key}: {path} cannot be created: {error.strerror}. Name another folder."
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: {path} cannot be written. Name another folder, or change its permissions.")


def entries(folder: Path) -> frozenset[str]:
    """Return the names in a folder, without the lock and unfinished files: a folder with only these counts as empty."""
    names = (entry.name for entry in folder.iterdir())
    return frozenset(name for name in names if name != LOCK and not name.endswith(UNFINISHED))


def require_plain_files(key: str, folder: Path) -> None:
    """Check that a folder holds only regular files and folders, so that nothing outside of it is read or written.

    `folder` itself may be a link. `key` names the setting in the message.

    Raises:
        ConfigError: There is a link, a pipe, a device or a socket in it.
    """
    for parent, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise ConfigError(
                    f"{key}: {path} is {kind}; a run reads and writes files of its own only. Copy the files there, or "
                    "remove it."
                )


@contextmanager
def locked_folder(key: str, path: Path) -> Iterator[None]:
    """Lock a folder for this process while the block runs; `key` names the setting in the message.

    Raises:
        ConfigError: Another process has locked it.
    """
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        _lock(lock)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"{key}: {path} is in use by another process. Wait until it ends, or name another folder."
        ) from None
    try:
        yield
    finally:
        os.close(lock)


def _lock(lock: int) -> None:
    try:
        lock_file(lock, wait=False)
    except BlockingIOError:
        # `is_locked` of another process takes the lock for microseconds.
        time.sleep(0.05)
        lock_file(lock, wait=False)


def lock_file(file: int, *, wait: bool) -> None:
    """Lock an open file against all others that do. On a disk without locks nothing is locked.

    Raises:
        BlockingIOError: Another process has it, and this one does not `wait`.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def is_locked(path: Path) -> bool:
    """Return True if a process has locked the folder: one that runs now, since a lock ends with its process."""
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a pipe or a device
        return False
    finally:
        os.close(lock)
    return False


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError without one: Python names the file when opening fails, not when writing does."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync(path: Path) -> None:
    """Flush the content of a file, or the entries of a folder, to the disk."""
    with naming(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _NO_SYNC or not path.is_dir():
                raise
        finally:
            os.close(handle)


def sync_folder(folder: Path) -> None:
    """Flush a folder and everything in it to the disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


@contextmanager
def claimed_folder(key: str, path: Path, check: Callable[[], None]) -> Iterator[None]:
    """Create a folder, and lock it for this process while the block runs; `key` names the setting.

    `check` raises if the folder may not be used. It is called before anything is written, and again once the folder is locked,
    since another process may have used it in between. A folder that is new and still empty at the end is removed.

    Raises:
        ConfigError: The folder cannot be created or written, or another process has locked it.
    """
    check()
    is_new = not path.exists()
    make_folder(key, path)
    with locked_folder(key, path):
        check()
        try:
            yield
        finally:
            # Somebody may have removed it meanwhile, which is not to hide why the block failed.
            with suppress(OSError):
                (path / LOCK).unlink()
                if is_new and not any(path.iterdir()):
                    path.rmdir()


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file beside `path`, then rename it: a crash leaves the old file or the new one."""
    replace_pieces(path, (content,))


def replace_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file as `replace_file` does, from content that is too large for memory."""
    with replacing(path) as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write as `replace_file` does, piece by piece; an exception leaves the old file only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.unlink(missing_ok=True)
    try:
        with naming(path), unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    sync(path.parent)


def append_line(path: Path, record: object, *, synced: bool) -> None:
    """Append one line of JSON; after a crash the line is complete, cut off or absent.

    Raises:
        TypeError, ValueError: As `dump_line`; nothing is written.
    """
    line = dump_line(record) + "\n"
    with naming(path), path.open("a", encoding="ascii", newline="\n") as file:
        file.write(line)
        if synced:
            file.flush()
            os.fsync(file.fileno())


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a whole file of lines (see `replace_file`)."""
    replace_file(path, "".join(line + "\n" for line in lines).encode("ascii"))


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        DataError: The file does not exist or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8 text") from None


def read_record(path: Path, read: Reader[T]) -> T:
    """Read the JSON of a small file of ours.

    Raises:
        DataError: The file cannot be read, is larger than any that ramify writes, or holds something else; names the field.
    """
    try:
        return read(parse_json(read_small_file(path), unique_keys=True, max_depth=2 * MAX_DEPTH))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def write_record(path: Path, value: object) -> None:
    """Write a value as the JSON of a small file (see `replace_file`)."""
    replace_file(path, (json.dumps(value, indent=2) + "\n").encode("ascii"))


def parse_line(path: Path, row: int, line: str | bytes) -> dict[str, Any]:
    """Read one line; `row` counts from 1.

    Raises:
        DataError: The line is cut off, is not JSON or is not an object.
    """
    try:
        # Files of a run contain rows of data, so they may be nested a little deeper than these.
        record = parse_json(line, max_depth=2 * MAX_DEPTH)
    except ValueError as error:
        raise DataError(f"{path} row {row}: the line is cut off or not JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"{path} row {row}: expected a JSON object, found {type(record).__name__}")
    return record
