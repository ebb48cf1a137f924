"""Finds the rows of a benchmark: in a folder with the papers' layout, a file, or a data set of the Hugging Face hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ramify.core.errors import DataError
from ramify.data.benchmark_cipher import unsealed
from ramify.data.benchmark_golds import is_missing
from ramify.data.benchmark_hub import HUB_PREFIX, fetch
from ramify.data.problems import read_jsonl, read_messages, read_parquet
from ramify.data.verl_rows import is_verl, plain_row

PLAIN_QUESTIONS = ("question", "problem", "prompt")
"""Usual names of the question's field, tried in this order; `prompt` may be a list of messages."""

_SUFFIXES = (".jsonl", ".parquet")


class FileRow(NamedTuple):
    """A row, its index among the rows of all files (from 0), and its place in the files for error messages."""

    number: int
    where: str
    values: Mapping[str, Any]


def find_benchmark(name: str, place: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files of one benchmark, and notes about them for the user.

    Args:
        name: The benchmark's name in lower case; matched against names of folders and files regardless of case.
        place: A file; a folder with NAME/test.jsonl, NAME.jsonl or test.jsonl (or .parquet); or "hf:org/name".

    Raises:
        DataError: There is no file, or more than one.
    """
    if place.startswith(HUB_PREFIX):
        return fetch(place)
    path = Path(place)
    if not path.is_dir():
        return (_file(path),), ()
    inside = sorted(path.iterdir())
    for found in (
        [child / f"test{s}" for child in inside if child.name.casefold() == name for s in _SUFFIXES],
        [child for child in inside if child.name.casefold() in [name + s for s in _SUFFIXES]],
        [path / f"test{s}" for s in _SUFFIXES],
    ):
        files = [file for file in found if file.is_file()]
        if len(files) > 1:
            raise DataError(
                f"{path}: {' and '.join(file.name for file in files)} are both {name}; name one file"
            )
        if files:
            return (files[0],), ()
    raise DataError(f"{path}: no {name}; expected {name}/test.jsonl or {name}.jsonl in it (or .parquet)")


def find_tables(place: str) -> tuple[Path, ...]:
    """All files of `place`: a file or "hf:org/name", or every table in a folder and one level below it.

    Raises:
        DataError: There is no file.
    """
    if place.startswith(HUB_PREFIX):
        return fetch(place)[0]
    path = Path(place)
    if not path.is_dir():
        return (_file(path),)
    files = sorted(file for depth in ("*", "*/*") for s in _SUFFIXES for file in path.glob(f"{depth}{s}"))
    if not files:
        raise DataError(
            f"{path}: expected .jsonl or .parquet files in this folder or one level below, found none"
        )
    return tuple(files)


def read_rows(files: tuple[Path, ...]) -> Iterator[FileRow]:
    """The rows of all files in order; verl-style rows are converted to plain ones, encrypted rows are decrypted.

    Raises:
        DataError: A file or a row cannot be read; the message names file and row.
    """
    number = 0
    for path in files:
        parquet = path.suffix == ".parquet"
        counting = "rows count from 0" if parquet else "lines count from 1"
        columns, rows = read_parquet(path) if parquet else ([], read_jsonl(path))
        for line, row in rows:
            where = f"{path} row {line} ({counting})"
            if not isinstance(row, dict):
                raise DataError(f"{where}: expected an object, got {type(row).__name__}")
            try:
                yield FileRow(number, where, unsealed(plain_row(row) if is_verl(columns) else row))
            except ValueError as error:
                raise DataError(f"{where}: {error}") from None
            number += 1


def find_field(row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any] | None:
    """The first of `names` for which the row has a value: the name as the row spells it, and the value; else None.

    Case is ignored. "info.level" is the field `level` of the record `info`.
    """
    for name in names:
        outer, dot, inner = name.partition(".")
        for key, value in row.items():
            if key.casefold() != outer or is_missing(value):
                continue
            if not dot:
                return key, value
            below = find_field(value, (inner,)) if isinstance(value, dict) else None
            if below is not None:
                return f"{key}.{below[0]}", below[1]
    return None


def read_question(row: Mapping[str, Any], names: tuple[str, ...] = PLAIN_QUESTIONS) -> str:
    """The question of a row, from the first of the fields `names`; in a list of messages, the last user message.

    Raises:
        ValueError: There is no question; names the field.
    """
    found = find_field(row, names)
    if found is None:
        raise ValueError(f"no field {names[0]!r}{_alternatives(names)}; found {', '.join(row) or 'none'}")
    key, value = found
    if isinstance(value, list):
        spoken = [message.text for message in read_messages({"prompt": value}) if message.role == "user"]
        value = spoken[-1] if spoken else ""
    if not isinstance(value, str):
        raise ValueError(f"field {key!r} must be text, got {type(value).__name__}")
    value.encode()  # raises at a lone surrogate, which is legal JSON but not text
    if not value.strip():
        raise ValueError(f"field {key!r} is blank")
    return value.strip()


def _alternatives(names: tuple[str, ...]) -> str:
    return f" (nor {', '.join(map(repr, names[1:]))})" if len(names) > 1 else ""


def _file(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if path.suffix not in _SUFFIXES:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; expected .jsonl or .parquet")
    return path
