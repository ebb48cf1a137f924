"""Files and JSON from outside: any fault is one line, and nothing waits for a pipe or fills the memory."""

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError

MAX_DEPTH = 100
"""Deepest nesting of lists and objects. Python's own functions (copying, comparing, writing JSON) fail near 1,000."""

MAX_ECHO = 40
"""Characters of a wrong value or key that an error shows."""


def parse_json(text: str | bytes, *, unique_keys: bool = False, max_depth: int = MAX_DEPTH) -> Any:  # noqa: ANN401 - any JSON value
    """Parse a JSON value. NaN and Infinity are accepted, since Python writes them.

    Args:
        text: The JSON text; bytes must be UTF-8.
        unique_keys: Refuse an object with a duplicate key; JSON readers would keep the last value and drop the others.
        max_depth: Deepest nesting of lists and objects.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has a number with thousands of digits.
    """
    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(plain, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        raise ValueError(f"broken JSON: {error.msg} at {line}column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError(f"nested more than {max_depth} deep") from None
    except ValueError as error:
        reason = str(error)
        # Python's own message about long numbers advises to call a function of `sys`.
        raise ValueError("a number has too many digits" if "digits" in reason else reason) from None
    if _may_be_deep(text, max_depth) and _is_deep(value, max_depth):
        raise ValueError(f"nested more than {max_depth} deep")
    return value


def parse_object(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: As for `parse_json`, or the value is not an object.
    """
    value = parse_json(text, max_depth=max_depth)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {_KINDS.get(type(value), 'null')}")
    return value


_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"key {twice[:MAX_ECHO]!r} stands in one object twice")
    return found


def _may_be_deep(text: str | bytes, max_depth: int) -> bool:
    """A quick test first: count the brackets; few texts have many."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{") > max_depth
    return text.count("[") + text.count("{") > max_depth


def _is_deep(value: object, max_depth: int) -> bool:
    level: list[object] = [value] if type(value) in _NESTED else []
    for _ in range(max_depth):
        level = [inner for outer in level if outer for inner in _inside(outer)]
        if not level:
            return False
    return True


_NESTED = frozenset({dict, list})


def _inside(value: Any) -> Iterable[object]:  # noqa: ANN401 - an object or a list
    inner = value.values() if type(value) is dict else value
    # The test runs in C: most lists are long and hold numbers only.
    return () if _NESTED.isdisjoint(map(type, inner)) else [item for item in inner if type(item) in _NESTED]


MAX_BYTES = 256 << 20
"""Of a file that is read as a whole; no tokenizer, configuration, record or table of metrics comes near."""

_READ_WHOLE = (".json", ".jinja", ".txt", ".model")


def read_small_file(path: Path) -> bytes:
    """All bytes of a file.

    Raises:
        DataError: It is missing, cannot be read, is no regular file, or has more than `MAX_BYTES`.
    """
    try:
        # A pipe that nobody writes to would wait here for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            if stat.S_ISDIR(about.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            _require_small(path, about)
            return file.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def require_readable(file: Path) -> None:
    """See that a file can be opened: safetensors calls one that is there and may not be read missing.

    Raises:
        DataError: It cannot; says why.
    """
    try:
        file.open("rb").close()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None


def require_plain_model(folder: Path) -> None:
    """See that libraries which read a model folder meet regular files only, and small ones where they read them whole.

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
