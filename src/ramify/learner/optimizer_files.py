"""The files of an optimizer's state: one for each process, read by any other number of them.

One process writes `optimizer.safetensors`, several write `optimizer-00001-of-00004.safetensors` and so on. Of a tensor that
is split a file holds consecutive rows of the whole one, and tells in its header which: {"name": [first row, rows of all]}.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ramify.core.errors import DataError
from ramify.core.json_text import parse_json
from ramify.core.json_types import FieldError, count, each, mapping
from ramify.learner.sharding import own_part, own_rows, writes_state
from ramify.modeling.tensor_files import TensorHead, read_heads, read_rows, write_tensors

ALONE = "optimizer.safetensors"
_ONE_OF = re.compile(r"optimizer-(\d{5})-of-(\d{5})\.safetensors")
_ROWS = "rows"


@dataclass(frozen=True, slots=True)
class HeldState:
    """What one process writes.

    Attributes:
        name: Name of its file.
        tensors: Its parts of the state.
        rows: Of those that are split, the first row and the number of rows of the whole.
    """

    name: str
    tensors: Mapping[str, torch.Tensor]
    rows: Mapping[str, tuple[int, int]]


def held_state(
    tensors: Mapping[str, torch.Tensor], number: int, count: int, *, copy: bool = False
) -> HeldState:
    """Return the part of the state that process `number` (0 <= number < count) writes; `copy`: in memory of its own."""
    rows: dict[str, tuple[int, int]] = {}
    mine: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        own = own_rows(tensor)
        if not writes_state(tensor) or (number and own == slice(None)):
            continue
        if own != slice(None):
            rows[name] = own.start, tensor.shape[0]
        mine[name] = own_part(tensor).to("cpu", copy=True) if copy else own_part(tensor)
    return HeldState(state_name(number, count), mine, rows)


def state_name(number: int, count: int) -> str:
    """Return the name of the file of process `number`."""
    return ALONE if count == 1 else f"optimizer-{number + 1:05d}-of-{count:05d}.safetensors"


def write_state_tensors(folder: Path, held: HeldState) -> None:
    """Write the file of one process; it is complete or has another name.

    Raises:
        OSError: The file cannot be written.
    """
    part = folder / f".{held.name}.part"
    write_tensors(part, held.tensors, {_ROWS: json.dumps(held.rows)} if held.rows else None)
    part.rename(folder / held.name)


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive rows of a tensor, in one of the files."""

    path: Path
    head: TensorHead
    start: int
    whole_rows: int


def _read_range(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - any JSON value
    pair = each(count)(value)
    if len(pair) != 2:
        raise FieldError.of("a first row and a number of rows", value)
    return pair


_READ_ROWS = mapping(_read_range)


class StoredState:
    """The state of an optimizer in the files of a folder, whatever number of processes wrote them."""

    def __init__(self, folder: Path) -> None:
        """Read the headers.

        Raises:
            DataError: Files or rows are missing, or a file is damaged.
        """
        self._parts: dict[str, list[_Part]] = {}
        for path in _files(folder):
            try:
                heads, metadata = read_heads(path)
                rows = _READ_ROWS(parse_json(metadata.get(_ROWS, "{}")))
                for name, head in heads.items():
                    start, whole = rows.get(name, (0, head.shape[0] if head.shape else 1))
                    self._parts.setdefault(name, []).append(_Part(path, head, start, whole))
            except ValueError as error:
                raise DataError(f"{path.name}: {error}") from None
        for name, parts in self._parts.items():
            parts.sort(key=lambda part: part.start)
            _require_all_rows(name, parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors."""
        return tuple(self._parts)

    def head(self, name: str) -> TensorHead:
        """Return the type and shape of a whole tensor."""
        first = self._parts[name][0]
        shape = (first.whole_rows, *first.head.shape[1:]) if first.head.shape else ()
        return TensorHead(first.head.dtype, shape)

    def rows(self, name: str, rows: slice) -> torch.Tensor:
        """Return some rows of a tensor, or all of it.

        Raises:
            DataError: A number is not finite, or a file cannot be read.
        """
        parts = self._parts[name]
        first, last, _ = rows.indices(parts[0].whole_rows)
        try:
            if not parts[0].head.shape:
                return read_rows(parts[0].path, name)
            pieces = [
                read_rows(part.path, name, slice(max(first - part.start, 0), last - part.start))
                for part in parts
                if part.start < last and part.start + part.head.shape[0] > first
            ]
        except ValueError as error:
            raise DataError(str(error)) from None
        empty = torch.empty((0, *parts[0].head.shape[1:]), dtype=parts[0].head.dtype)
        return pieces[0] if len(pieces) == 1 else torch.cat([empty, *pieces])


def _files(folder: Path) -> list[Path]:
    """Return the files of the state.

    Raises:
        DataError: One of several is missing.
    """
    matches = {
        match[0]: match for path in sorted(folder.glob("*")) if (match := _ONE_OF.fullmatch(path.name))
    }
    if not matches:
        return [folder / ALONE]
    files = int(next(iter(matches.values()))[2])
    names = [state_name(number, files) for number in range(files)]
    if missing := [name for name in names if name not in matches]:
        raise DataError(f"{missing[0]} is missing")
    return [folder / name for name in names]


def _require_all_rows(name: str, parts: list[_Part]) -> None:
    """Check that the parts lie side by side and make the whole tensor.

    Raises:
        DataError: Rows are missing, or there are too many.
    """
    end = 0
    for part in parts:
        size = part.head.shape[0] if part.head.shape else 1
        same = (part.head.dtype, part.head.shape[1:]) == (parts[0].head.dtype, parts[0].head.shape[1:])
        if part.start != end or part.whole_rows != parts[0].whole_rows or not same:
            raise DataError(f"{part.path.name}: {name} goes on from row {end}, got rows from {part.start}")
        end += size
    if end != parts[0].whole_rows:
        raise DataError(f"{parts[-1].path.name}: {name} has {end} rows, expected {parts[0].whole_rows}")
