"""Files of training examples, read row by row: demonstrations for SFT, pairs for DPO."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.chat.conversation import CompletionLines
from ramify.core.errors import RowError
from ramify.core.messages import Problem
from ramify.data.example_formats import PAIR, Format, Sides, read_row
from ramify.data.problems import listed, read_identifier
from ramify.data.recorded_pairs import RecordedPair, read_recorded_pair
from ramify.data.row_files import read_rows


@dataclass(frozen=True, slots=True)
class Example:
    """A problem, and the lines of the assistant and its tools after it.

    Attributes:
        problem: The problem; its id is the row's `id` in the plain format, else the row's number.
        sides: One side of a demonstration; of a pair the chosen and the rejected one.
        tools: The row's own tools (`row_tools.read_tools`); "" if it has none.
        format: The row's format.
        row: Its number in the file.
        recorded: Of a pair that was sampled: its ids, which are trained on in place of the sides' texts.
    """

    problem: Problem
    sides: tuple[CompletionLines, ...]
    tools: str
    format: Format
    row: int
    recorded: RecordedPair | None = None


def read_examples(path: Path, names: Sides) -> Iterator[tuple[int, Example | RowError]]:
    """Yield the examples of a file with the numbers of their rows; in place of one that cannot be read, the reason.

    Args:
        path: A .jsonl, .json or .parquet file (`row_files.read_rows`).
        names: The sides of an example.

    Raises:
        DataError: There is no such file, or it cannot be read from some row on.
    """
    row_of_id: dict[str, int] = {}
    for number, row in read_rows(path):
        try:
            yield number, _read(number, row, names, row_of_id)
        except RowError as error:
            yield number, error
        except ValueError as error:
            yield number, RowError(str(error))


def _read(number: int, row: Any, names: Sides, row_of_id: dict[str, int]) -> Example:  # noqa: ANN401 - any JSON value
    if isinstance(row, RowError):
        raise row
    if isinstance(row, list):
        raise RowError("a list, not an object; name a file that is one array of rows .json")
    if not isinstance(row, dict):
        raise RowError("not an object", type(row).__name__)
    reading = read_row(row, names)
    identifier = f"{number}"
    if reading.format == "plain":
        identifier = read_identifier(row, identifier)
        if row_of_id.setdefault(identifier, number) != number:
            raise RowError(
                "duplicate id",
                f"{identifier!r:.40} is that of row {row_of_id[identifier]}",
            )
    # Equal tools are one text in memory.
    tools = sys.intern(reading.tools)
    recorded = read_recorded_pair(row) if names == PAIR and row.get("ids") is not None else None
    problem = Problem(identifier, reading.prompt, ())
    return Example(problem, reading.sides, tools, reading.format, number, recorded)


class RefusedRows:
    """Rows of a file that cannot be used, by reason.

    Attributes:
        count: Number of rows.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[str, list[int]] = {}
        self._first_detail: dict[str, str] = {}

    def add(self, row: int, error: RowError) -> None:
        """Count a row."""
        self.count += 1
        self._rows.setdefault(error.reason, []).append(row)
        self._first_detail.setdefault(error.reason, error.detail)

    def __str__(self) -> str:
        """Return one line: the reasons, the most frequent first, each with its number of rows and the first of them."""
        by_count = sorted(self._rows.items(), key=lambda item: (-len(item[1]), item[1]))
        lines = [self._describe(reason, rows) for reason, rows in by_count[:_MOST_REASONS]]
        if more := by_count[_MOST_REASONS:]:
            lines.append(f"{sum(len(rows) for _, rows in more)} rows for {len(more)} more reasons")
        return "; ".join(lines)

    def _describe(self, reason: str, rows: list[int]) -> str:
        detail = self._first_detail[reason]
        if len(rows) == 1:
            return f"row {rows[0]}: {reason}{': ' * bool(detail)}{detail}"
        shown = f" (the first: {detail})" if detail else ""
        return f"{len(rows):,} rows ({listed(rows)}): {reason}{shown}"


_MOST_REASONS = 12
