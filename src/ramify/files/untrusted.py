"""Files from outside: any fault is one line, and nothing waits for a pipe or fills the memory."""

import errno
import os
import stat
from pathlib import Path

from ramify.core.errors import DataError

MAX_BYTES = 256 << 20
"""Most bytes of a file that is read as a whole; no tokenizer, configuration, record or table of metrics comes near."""

_READ_WHOLE = (".json", ".jinja", ".txt", ".model")


def read_small_file(path: Path) -> bytes:
    """Return all bytes of a file.

    Raises:
        DataError: It is missing, cannot be read, is no regular file, or has more than `MAX_BYTES`.
    """
    try:
        # Opening a pipe without a writer would wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if stat.S_ISDIR(about.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            _require_small(path, about)
            return file.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def require_readable(file: Path) -> None:
    """Check that a file can be opened: safetensors calls one without read permission missing.

    Raises:
        DataError: It cannot be opened; says why.
    """
    try:
        file.open("rb").close()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None


def require_plain_model(folder: Path) -> None:
    """Check that a model folder has only regular files, and small ones where libraries read them whole.

    Links are followed: the Hugging Face cache is made of them.

    Raises:
        DataError: A pipe, a device, a socket, a link to nothing, or a description of more than `MAX_BYTES`.
    """
    for path in sorted(folder.iterdir()):
        try:
            about = path.stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        if not stat.S_ISDIR(about.st_mode):
            _require_small(path, about, whole=path.suffix in _READ_WHOLE)


def _require_small(path: Path, about: os.stat_result, *, whole: bool = True) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise DataError(f"{path}: expected a file, found a pipe, a device or a socket")
    if whole and about.st_size > MAX_BYTES:
        raise DataError(f"{path}: {about.st_size:,} bytes, expected at most {MAX_BYTES:,}")
