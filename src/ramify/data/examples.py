"""Files of training examples, read row by row: demonstrations for SFT, pairs for DPO."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from ramify.chat.conversation import CompletionLines
from ramify.core.errors import RowError, RowOmittedError
from ramify.core.messages import Problem
from ramify.data.configs import DataFiles
from ramify.data.example_formats import PAIR, Format, Sides, read_row
from ramify.data.problems import listed, read_identifier
from ramify.data.recorded_pairs import RecordedPair, read_recorded_pair
from ramify.data.row_columns import ColumnNames, Row, is_missing, with_own_names
from ramify.data.row_messages import WEIGHTS
from ramify.data.sources import DataRow, data_files, read_data

RowName: TypeAlias = int | str
"""The number of a row in its file; of several files the file's name with it."""


@dataclass(frozen=True, slots=True)
class Example:
    """A problem, and the lines of the assistant and its tools after it, perhaps with later messages of the user.

    Attributes:
        problem: The problem; its id is the row's `id` in the plain format, else the row's number.
        sides: One side of a demonstration; of a pair the chosen and the rejected one.
        tools: The row's own tools (`row_tools.read_tools`); "" if it has none.
        format: The row's format.
        row: Its number in the file, or its name.
        recorded: Of a pair that was sampled: its ids, which are trained on in place of the sides' texts.
    """

    problem: Problem
    sides: tuple[CompletionLines, ...]
    tools: str
    format: Format
    row: RowName
    recorded: RecordedPair | None = None


def read_examples(
    data: DataFiles | str,
    names: Sides,
    columns: ColumnNames = MappingProxyType({}),
    weights: Sequence[float] = (),
    limit: int | None = None,
) -> Iterator[tuple[RowName, Example | RowError]]:
    """Yield the examples of files with the names of their rows; in place of one that cannot be read, the reason.

    Args:
        data: Files, folders or data sets of the hub (`data.sources`).
        names: The sides of an example.
        columns: By our name for a column the file's.
        weights: For each of the data how often its rows come.
        limit: Read the first `limit` rows only.

    Raises:
        DataError: There is no such file, or it cannot be read from some row on.
    """
    row_of_id: dict[tuple[Path, str], RowName] = {}
    is_one = len(data_files(data)) == 1
    for row in read_data(data, weights, limit=limit):
        name = row.number if is_one else f"{row.path.name}:{row.number}"
        example: Example | RowError
        try:
            example = _read(name, row, names, columns, row_of_id)
        except RowError as error:
            example = error
        except ValueError as error:
            example = RowError(str(error))
        for _ in range(row.copies):
            yield name, example


def _read(
    name: RowName,
    row: DataRow,
    names: Sides,
    columns: ColumnNames,
    row_of_id: dict[tuple[Path, str], RowName],
) -> Example:
    own = with_own_names(row.record(), columns)
    _require_trained(own)
    reading = read_row(own, names)
    identifier = f"{name}"
    if reading.format == "plain":
        identifier = read_identifier(own, identifier)
        is_own = own.get("id") is not None
        if is_own and (first := row_of_id.setdefault((row.path, identifier), name)) != name:
            raise RowError("duplicate id", f"{identifier!r:.40} is that of row {first}")
    # Equal tools are one text in memory.
    tools = sys.intern(reading.tools)
    recorded = read_recorded_pair(own) if names == PAIR and own.get("ids") is not None else None
    problem = Problem(identifier, reading.prompt, ())
    return Example(problem, reading.sides, tools, reading.format, name, recorded)


def _require_trained(row: Row) -> None:
    """Require that a row is trained on: KTO's `label` is not false, and its weight is not 0.

    Raises:
        RowOmittedError: It is not.
        RowError: Its weight is neither 0 nor 1.
    """
    label = row.get("label")
    # Other labels are classes or golds, unless KTO's own column of the answer stands beside a number.
    if label is False or str(label).casefold() == "false":
        raise RowOmittedError("label = false")
    if isinstance(label, int | float) and label == 0 and not is_missing(row.get("completion")):
        raise RowOmittedError("label = 0")
    for name in WEIGHTS:
        value = row.get(name)
        weight = 1.0 if is_missing(value) else _as_number(value)
        if weight == 0:
            raise RowOmittedError(f"{name} = 0")
        if weight != 1:
            raise RowError("the weight of a row must be 0 or 1", f"{name!r} is {value!r:.40}")


def _as_number(value: object) -> float | None:
    """Return a number or a truth value, which tables in text spell; None for anything else."""
    if isinstance(value, str):
        value = {"false": "0", "true": "1"}.get(value.casefold(), value)
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


class RefusedRows:
    """Rows of a file that cannot be used, by reason.

    Attributes:
        count: Number of rows.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[str, list[RowName]] = {}
        self._first_detail: dict[str, str] = {}

    def add(self, row: RowName, error: RowError) -> None:
        """Count a row."""
        self.count += 1
        self._rows.setdefault(error.reason, []).append(row)
        self._first_detail.setdefault(error.reason, error.detail)

    def __str__(self) -> str:
        """Return one line: the reasons, the most frequent first, each with its number of rows and the first of them."""
        by_count = sorted(self._rows.items(), key=lambda item: -len(item[1]))
        lines = [self._describe(reason, rows) for reason, rows in by_count[:_MOST_REASONS]]
        if more := by_count[_MOST_REASONS:]:
            lines.append(f"{sum(len(rows) for _, rows in more)} rows for {len(more)} more reasons")
        return "; ".join(lines)

    def _describe(self, reason: str, rows: list[RowName]) -> str:
        detail = self._first_detail[reason]
        if len(rows) == 1:
            return f"row {rows[0]}: {reason}{': ' * bool(detail)}{detail}"
        shown = f" (the first: {detail})" if detail else ""
        return f"{len(rows):,} rows ({listed(rows)}): {reason}{shown}"


_MOST_REASONS = 12
