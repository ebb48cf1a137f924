"""The rows of a benchmark: in a folder with the papers' layout, a file, or a data set of the Hugging Face hub.

In some benchmarks, as in xbench, question and answer are encrypted against crawlers, with the key beside them: base64 of the
UTF-8 text, XORed with the bytes of the row's `canary`, repeated as often as needed.

A data set of the hub is downloaded into the hub's own cache (`ramify.net.hub`). Tested against a stand-in,
not against the real hub.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ramify.core.errors import DataError, RowError
from ramify.core.messages import Message
from ramify.data import row_files
from ramify.data.row_columns import find_field, is_missing, is_verl, number_as_text, plain_row
from ramify.data.row_files import counting
from ramify.data.row_messages import is_messages_text, read_lines
from ramify.data.tables import HUB_PREFIX, SUFFIXES, check_file, fetch

PLAIN_QUESTIONS = ("question", "problem", "prompt")
"""Usual names of the question's field, tried in this order; `prompt` may be a list of messages."""
_ANY_QUESTION = (*PLAIN_QUESTIONS, "messages", "conversations", "instruction")
"""Those of training data, too."""

_SEALED = re.compile("[A-Za-z0-9+/]{32,}={0,2}")
_FIELDS = ("prompt", "question", "answer")
GoldForm: TypeAlias = Literal["plain", "rationale"]
"""plain: a text, a number or a list of them; rationale: GSM8K's worked answer, whose last line is "#### 1,234"."""

_NUMBER = re.compile(r"[-+]?[$]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)%?")
_HIDDEN = "?"


class FileRow(NamedTuple):
    """A row, its index among the rows of all files (from 0), and its file and row for error messages."""

    number: int
    where: str
    values: Mapping[str, Any]


def find_benchmark(name: str, location: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the files of one benchmark, and notes about them for the user.

    Args:
        name: The benchmark's name in lower case; matched against names of folders and files regardless of case.
        location: A file; a folder with NAME/test.jsonl, NAME.jsonl or test.jsonl (or .parquet); or "hf:org/name".

    Raises:
        DataError: There is no file, or more than one.
    """
    if location.startswith(HUB_PREFIX):
        return fetch(location)
    path = Path(location)
    if not path.is_dir():
        return (check_file(path),), ()
    inside = sorted(path.iterdir())
    for candidates in (
        [child / f"test{s}" for child in inside if child.name.casefold() == name for s in SUFFIXES],
        [child for child in inside if child.name.casefold() in [name + s for s in SUFFIXES]],
        [path / f"test{s}" for s in SUFFIXES],
    ):
        files = [file for file in candidates if file.is_file()]
        if len(files) > 1:
            names = " and ".join(file.name for file in files)
            raise DataError(f"{path}: {names} are both {name}. Name one of the files")
        if files:
            return (files[0],), ()
    raise DataError(f"{path}: no {name}; expected {name}/test.jsonl or {name}.jsonl in it (or .parquet)")


def read_rows(files: tuple[Path, ...]) -> Iterator[FileRow]:
    """Yield the rows of all files in order; verl-style rows are converted to plain ones, encrypted rows are decrypted.

    Raises:
        DataError: A file or a row cannot be read; the message names file and row.
    """
    number = 0
    for path in files:
        for line, row in row_files.read_rows(path):
            where = f"{path} row {line} ({counting(path)})"
            if isinstance(row, RowError):
                raise DataError(f"{where}: {row}")
            if not isinstance(row, dict):
                raise DataError(f"{where}: expected an object, got {type(row).__name__}")
            try:
                yield FileRow(number, where, decrypt(plain_row(row) if is_verl(row) else row))
            except ValueError as error:
                raise DataError(f"{where}: {error}") from None
            number += 1


def read_question(row: Mapping[str, Any], names: tuple[str, ...] = _ANY_QUESTION) -> str:
    """Return the question of a row, from the first of the fields `names`; in a list of messages, the last user message.

    Raises:
        ValueError: There is no question; names the field.
    """
    field = find_field(row, names)
    if field is None:
        others = f" (nor {', '.join(map(repr, names[1:]))})" if len(names) > 1 else ""
        raise ValueError(f"no field {names[0]!r}{others}; found {', '.join(row) or 'none'}")
    key, value = field
    if isinstance(value, list) or is_messages_text(value):
        try:
            lines = read_lines(value, key)
        except RowError as error:
            raise ValueError(str(error)) from None
        texts = [line.text for line in lines if isinstance(line, Message) and line.role == "user"]
        value = texts[-1] if texts else ""
    if not isinstance(value, str):
        raise ValueError(f"field {key!r} must be text, got {type(value).__name__}")
    value.encode()  # raises at a lone surrogate, which is valid JSON but not text
    if not value.strip():
        raise ValueError(f"field {key!r} is blank")
    return value.strip()


def is_sealed(question: object) -> bool:
    """Return True if a question looks like base64: long and without blanks."""
    return isinstance(question, str) and _SEALED.fullmatch(question.strip()) is not None


def decrypt(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Decrypt the question and answer of a row; a row that is not encrypted, or has no key, is returned unchanged.

    Raises:
        ValueError: The key does not fit.
    """
    key = row.get("canary")
    if not isinstance(key, str) or not key or not any(is_sealed(row.get(name)) for name in _FIELDS[:2]):
        return row
    return {
        **row,
        **{name: _decrypt_text(row[name], key, name) for name in _FIELDS if isinstance(row.get(name), str)},
    }


def _decrypt_text(text: str, key: str, name: str) -> str:
    try:
        sealed = base64.b64decode(text, validate=True)
        return bytes(a ^ b for a, b in zip(sealed, cycle(key.encode()), strict=False)).decode()
    except (binascii.Error, UnicodeError):
        raise ValueError(f"field {name!r} is encrypted, but not with the row's 'canary'") from None


def read_golds(value: object, form: GoldForm) -> tuple[str, ...]:
    """Return the accepted answers in `value`, stripped and without duplicates.

    Only a list holds several answers. A text is one answer: "[1, 2)" is an interval, "Paris, Texas" a place.

    Raises:
        ValueError: There is no answer, it is hidden ("?"), or one is neither text nor a number.
    """
    values = value if isinstance(value, list) else [value]
    texts = [text for each in values if (text := _text(each))]
    if not texts:
        raise ValueError("is an empty list" if values == [] else "is blank")
    if _HIDDEN in texts:
        raise ValueError('is "?", so the answers of this split are hidden. Use a split that has them')
    return tuple(dict.fromkeys(map(_after_rationale, texts) if form == "rationale" else texts))


def _text(value: object) -> str:
    if is_missing(value):
        return ""
    if isinstance(value, str):
        value.encode()  # raises at a lone surrogate, which is valid JSON but not text
        return value.strip()
    if (text := number_as_text(value)) is None:
        raise ValueError(f"must be text, a number or a list of them, got {value!r:.40}")
    return text


def _after_rationale(text: str) -> str:
    number = text.rpartition("####")[2].strip()
    if not _NUMBER.fullmatch(number):
        raise ValueError(f'must be a number or end in "#### number", got {number!r:.40}')
    return number.replace(",", "")
