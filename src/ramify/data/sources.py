"""The data that a recipe names: files, folders of shards, data sets of the hub, and lists of them with weights."""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ramify.core.errors import ConfigError, DataError, RowError
from ramify.data.configs import DataFiles
from ramify.data.row_files import FILE_KINDS, counting, read_rows
from ramify.data.tables import HUB_PREFIX, SHARD, fetch, find_tables, hub_location

Split: TypeAlias = Literal["train", "test"]
Data: TypeAlias = DataFiles | str | tuple[str, ...]
"""What a recipe names."""

_SPLIT = re.compile(r"(?<![^\W_])(train|test|valid|validation|dev|eval)(?![^\W_])", re.IGNORECASE)
_HUB_PAGE = re.compile(r"https?:/+(?:huggingface\.co|hf\.co)/datasets/|datasets/")
"""Before the id in the address of a data set's page, as a path has it."""


@dataclass(frozen=True, slots=True)
class DataRow:
    """A row of one of the files.

    Attributes:
        path: The file.
        number: The row's number in the file.
        value: The JSON value, or the RowError in its place.
        copies: How often it comes in an epoch.
    """

    path: Path
    number: int
    value: Any
    copies: int

    @property
    def where(self) -> str:
        """The file and the row, for messages."""
        return f"{self.path} row {self.number} ({counting(self.path)})"

    def record(self) -> dict[str, Any]:
        """Return the row as an object.

        Raises:
            RowError: It is none, or cannot be read.
        """
        if isinstance(self.value, RowError):
            raise self.value
        if isinstance(self.value, dict):
            return self.value
        is_array = isinstance(self.value, list) and self.path.suffix == ".jsonl"
        hint = ". Name a file that is one array of rows .json" if is_array else ""
        raise RowError(f"expected an object, got {type(self.value).__name__}{hint}")


def sources(data: Data) -> tuple[str, ...]:
    """Return what a recipe names, one or several."""
    return tuple(map(str, data)) if isinstance(data, tuple) else (str(data),)


def named(data: Data) -> str:
    """Return the data as messages name them."""
    first, *others = sources(data)
    return f"{first} and {len(others)} more" if others else first


def is_on_hub(data: Data) -> bool:
    """Return True if some of the data are fetched from the hub."""
    return any(source.startswith(HUB_PREFIX) for source in sources(data))


def data_files(data: Data, split: Split = "train") -> tuple[Path, ...]:
    """Return the files of data, in order; what is on the hub is fetched, or was fetched before.

    Args:
        data: Of a recipe.
        split: The part that is read where a folder or a data set of the hub has several and none is named.

    Raises:
        DataError: There is nothing, the hub gives nothing, or it is not clear which of several tables is meant.
    """
    return tuple(path for source in sources(data) for path in _files(source, split))


def source_notes(data: Data, split: Split = "train") -> tuple[str, ...]:
    """Return a note on the revision of each data set of the hub, and on each folder of which not all files are read.

    Raises:
        DataError: As `data_files`.
    """
    notes: list[str] = []
    for source in sources(data):
        if source.startswith(HUB_PREFIX):
            notes += _fetched(source, split)[1]
        elif Path(source).is_dir():
            files, every = _files(source, split), find_tables(source)
            if len(files) < len(every):
                names = ", ".join(path.name for path in files[:12])
                notes.append(
                    f"{source}: read {len(files)} of {len(every)} files, those of the split {split!r}: {names}"
                )
    return tuple(notes)


def read_data(
    data: Data,
    weights: Sequence[float] = (),
    split: Split = "train",
    limit: int | None = None,
) -> Iterator[DataRow]:
    """Yield the rows of all files in order. A weight of 2 yields two copies, 0.5 one copy of every second row.

    Nothing is read behind the first `limit` rows, which are those of the files, whatever becomes of them.

    Raises:
        DataError: As `data_files`, or a file cannot be read from some row on, or a weight yields none of its rows.
    """
    every = sources(data)
    for source, weight in zip(every, weights or (1.0,) * len(every), strict=True):
        count = 0
        rows = ((path, *row) for path in _files(source, split) for row in read_rows(path))
        for path, number, value in islice(rows, limit):
            copies = weighted(count + 1, weight) - weighted(count, weight)
            count += 1
            yield DataRow(path, number, value, copies)
        if count and not weighted(count, weight):
            raise DataError(
                f"data.weights: {weight:g} uses no row of {source}, which has {count:,}. Use at least 1/{count}, or leave the file out."
            )
        limit = None if limit is None else limit - count


def weighted(count: int, weight: float) -> int:
    """Return how often the first `count` rows come in an epoch, all together."""
    # Rounded, because 100 * 0.29 is a little less than 29.
    return math.floor(round(count * weight, 9))


def require_data(key: str, data: Data) -> None:
    """Check that files and folders are there; of a data set of the hub only how it is written.

    Raises:
        ConfigError: One is not.
    """
    for source in sources(data):
        path = Path(source)
        if source.startswith(HUB_PREFIX) or path.is_dir():
            try:
                (hub_location if source.startswith(HUB_PREFIX) else find_tables)(source)
            except DataError as error:
                raise ConfigError(f"{key}: {error}") from None
        elif not path.is_file():
            other = "got something else" if path.exists() else "found none"
            raise ConfigError(f"{key}: expected a file, {other} at {source}{_hub_hint(source)}")
        elif path.suffix not in FILE_KINDS:
            raise ConfigError(
                f"{key}: {source}: unknown kind of file {path.suffix!r}, expected {', '.join(FILE_KINDS)}"
            )
        else:
            require_readable(key, path)


def _hub_hint(source: str) -> str:
    """Return how a data set of the hub is written, if a source that is no file looks like one."""
    location = HUB_PREFIX + _HUB_PAGE.sub("", source, count=1)
    try:
        hub_location(location)
    except DataError:
        return ""
    is_path = Path(source).parent.exists() or Path(source).suffix in FILE_KINDS
    return "" if is_path else f". A data set of the hub is written {location}"


def require_readable(key: str, path: Path) -> None:
    """Raise ConfigError if a file cannot be opened."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from None


def _files(source: str, split: Split) -> tuple[Path, ...]:
    if source.startswith(HUB_PREFIX):
        return _fetched(source, split)[0]
    path = Path(source)
    return _shards(path, split) if path.is_dir() else (path,)


@functools.lru_cache(64)
def _fetched(source: str, split: Split) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Fetch once in a process, so that all readers have the same revision."""
    return fetch(source, split)


def _shards(folder: Path, split: Split) -> tuple[Path, ...]:
    """Return the tables in a folder; of several splits the one that is meant.

    Raises:
        DataError: There is none, or no table of the split.
    """
    files = [path for path in find_tables(str(folder)) if not path.name.startswith((".", "_"))]
    splits = {path: _SPLIT.findall(SHARD.sub("", str(path.relative_to(folder)))) for path in files}
    if not any(splits.values()):
        return tuple(files)
    chosen = [path for path in files if split in map(str.casefold, splits[path])]
    if not chosen:
        shown = ", ".join(dict.fromkeys(path.name for path in files[:12]))
        raise DataError(f"{folder}: expected files of the split {split!r}, found {shown}. Name the files")
    return tuple(chosen)
