"""Output files and folders of commands: written whole or not at all, and never over a file that the command reads."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ramify.core.errors import ConfigError, MachineError
from ramify.files.durable import LOCK, UNFINISHED, locked_folder, make_folder, replace_file, sync


def require_output(option: str, path: Path, read: Iterable[Path]) -> None:
    """Check, before any work is done, that a result can be written to `path`.

    Args:
        option: The option that gave the path, for messages, such as "--out".
        path: The output file; it may exist, and may be a link.
        read: Files that the command reads.

    Raises:
        ConfigError: The path leads to one of these files or to a folder, or it cannot be written.
    """
    try:
        target = _target(path)
        for source in read:
            if any(
                _are_one(source, written) for written in (target, target.with_name(target.name + UNFINISHED))
            ):
                raise ConfigError(
                    f"{option} {path}: {source} would be overwritten, but the command reads it; name another file"
                )
        if path.is_dir():
            raise ConfigError(f"{option} {path}: is a folder; expected a file")
        if not target.parent.is_dir():
            raise ConfigError(
                f"{option} {path}: the folder {target.parent} does not exist. Create it, or name another."
            )
        is_denied = path.exists() and not os.access(path, os.W_OK)
        if is_denied or (_is_replaced(path) and not os.access(target.parent, os.W_OK | os.X_OK)):
            raise ConfigError(f"{option} {path}: may not be written; name another file")
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written: {error.strerror}. Name another file."
        ) from None


def write_output(option: str, path: Path, content: bytes) -> None:
    """Write a file as a whole; if that fails, an older file stays unchanged.

    Raises:
        MachineError: The disk is full or fails; names the file.
    """
    target = _target(path)
    try:
        if _is_replaced(path):
            replace_file(target, content)
        else:
            path.write_bytes(content)
    except OSError as error:
        raise MachineError(
            f"{option} {path}: cannot be written: {error.strerror}. Make room there, or name a file elsewhere."
        ) from None


def _target(path: Path) -> Path:
    """Return the file that links lead to, which is replaced instead of the link."""
    return Path(os.path.realpath(path))


def _is_replaced(path: Path) -> bool:
    """Return True if the file is replaced as a whole; pipes and terminals are written to directly."""
    return path.is_file() or not path.exists()


def _are_one(first: Path, other: Path) -> bool:
    return _target(first) == _target(other) or (first.exists() and other.exists() and first.samefile(other))


@contextmanager
def new_output_folder(option: str, path: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `path` when the block ends; if the block fails, nothing is left.

    It lies beside `path`, so that it is renamed on one disk; all files in it are flushed before.

    Args:
        option: The option that gave the path, for messages, such as "--out".
        path: The folder, which must not exist.

    Raises:
        ConfigError: The folder exists, cannot be made, or another process writes it.
    """
    if os.path.lexists(path):
        raise ConfigError(f"{option} {path}: exists; name a new folder")
    above = path.absolute().parent
    if not above.is_dir():
        raise ConfigError(f"{option} {path}: the folder {above} does not exist. Create it, or name another.")
    unfinished = above / f".{path.name}{UNFINISHED}"
    make_folder(option, unfinished)
    with locked_folder(option, unfinished):
        try:
            for left in unfinished.iterdir():
                # Of a command that was killed.
                if left.name != LOCK:
                    left.unlink()
            yield unfinished
            for written in (*unfinished.iterdir(), unfinished):
                sync(written)
            (unfinished / LOCK).unlink()
            unfinished.rename(path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    sync(above)
