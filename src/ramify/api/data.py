"""Problems of a Python session: from files as recipes name them, and from rows that Python has, by the one row reader."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

from ramify.api.tables import require, short
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Message, Problem
from ramify.data.order import DataCursor, ProblemOrder
from ramify.data.problems import load_problems
from ramify.files.durable import dump_line, replace_lines

Rows: TypeAlias = Any
"""A list of dictionaries or problems, a `datasets.Dataset`, or a pandas frame."""


class Problems(Sequence[Problem]):
    """Problems in the order of their rows; `batches` has them in the order in which a run takes them.

    Attributes:
        notes: What was repaired or dropped.
    """

    def __init__(self, problems: Sequence[Problem], notes: Sequence[str] = (), seed: int = 0) -> None:
        """Hold problems."""
        self._problems, self.notes, self.seed = tuple(problems), tuple(notes), seed

    @overload
    def __getitem__(self, key: int) -> Problem: ...

    @overload
    def __getitem__(self, key: slice) -> "Problems": ...

    def __getitem__(self, key: int | slice) -> "Problem | Problems":
        if isinstance(key, slice):
            return Problems(self._problems[key], self.notes, self.seed)
        return self._problems[key]

    def __len__(self) -> int:
        return len(self._problems)

    def batches(self, size: int, epochs: int = 1) -> Iterator["Problems"]:
        """Yield the problems of each step of a run with this seed, `size` at a time.

        Raises:
            ConfigError: There are fewer problems than a step takes.
        """
        for key, value in (("size", size), ("epochs", epochs)):
            require(value, int, f"batches: {key}: expected a number")
        if not 1 <= size <= len(self):
            raise ConfigError(
                f"batches: expected a size from 1 to {len(self)}, the number of problems, got {size}"
            )
        order, cursor = ProblemOrder(len(self), self.seed), DataCursor()
        for _ in range(-(-len(self) * epochs // size)):
            indices, cursor = order.take(cursor, size)
            yield Problems([self._problems[index] for index in indices], self.notes, self.seed)

    def __repr__(self) -> str:
        first = self._problems[0].messages[-1].text if self._problems else ""
        return short(f"Problems({len(self)}, first {first!r})")


def problems(
    data: str | Path | Rows,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Problems:
    """Read problems: a prompt, a gold, and free columns in each row.

    Args:
        data: A file, a folder, "hf:org/name"; or rows: a list of dictionaries, a `datasets.Dataset`, a pandas frame.
        columns: By our name for a column that of the data.
        limit: Read the first `limit` rows only.
        seed: Of the order of `batches`, as `run.seed` of a recipe.

    Raises:
        DataError: A row cannot be read; names it.
    """
    require(limit, int | None, "problems: limit: expected a number of rows")
    require(columns, Mapping | None, "problems: columns: expected a dictionary, by our name that of the data")
    require(seed, int, "problems: seed: expected a whole number")
    if limit is not None and limit < 1:
        raise ConfigError(f"problems: limit: expected a number of rows from 1, got {limit}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(data) if isinstance(data, str | Path) else write_rows(data, Path(folder), "rows")
        try:
            loaded = load_problems(path, columns=columns or {}, limit=limit)
        except DataError as error:
            # The file of rows that Python has is gone when its name is read.
            raise DataError(str(error).replace(f"{folder}/rows.jsonl", "data")) from error
    return Problems(loaded.problems, loaded.notes, seed)


def as_problems(source: Any) -> tuple[Problem, ...]:  # noqa: ANN401 - whatever holds problems
    """Return the problems of a text, a problem, a row, or a list of these.

    Raises:
        ConfigError: It holds something else.
        DataError: A row cannot be read.
    """
    expected = "problems: expected problems, texts, or rows with a prompt and an answer"
    require(source, Iterable | Problem, expected)
    if _is_frame(source):
        return tuple(problems(source))
    listed = [source] if isinstance(source, Problem | str | Mapping) else list(source)
    if all(isinstance(each, Mapping) for each in listed):
        return tuple(problems(listed))
    mixed = [
        Problem(f"question-{number}", (Message.of("user", each),), ()) if isinstance(each, str) else each
        for number, each in enumerate(listed, start=1)
    ]
    if not all(isinstance(each, Problem) for each in mixed):
        raise ConfigError(expected)
    return tuple(each for each in mixed if isinstance(each, Problem))


def _is_frame(rows: Any) -> bool:  # noqa: ANN401 - pandas need not be installed
    """Return True for a pandas frame, which gives the names of its columns where a list gives rows."""
    return hasattr(rows, "to_dict") and hasattr(rows, "columns")


def _row(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a dictionary, a record or a problem
    """Return a row as the row reader takes it."""
    if not isinstance(row, Problem):
        return dict(row)
    prompt = [{"role": each.role, "content": each.text} for each in row.messages]
    return {**row.info, "id": row.id, "prompt": prompt, "answer": list(row.answer)}


def write_rows(rows: Rows, folder: Path, name: str) -> Path:
    """Write rows that Python has as a JSONL file of the folder; returns its path.

    Raises:
        ConfigError: They are no rows, or hold something that JSON cannot.
    """
    try:
        rows = rows.to_dict("records") if _is_frame(rows) else rows
        lines = [
            json.loads(json.dumps(_row(row), default=_plain), parse_constant=lambda _: None) for row in rows
        ]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"data: expected a file, or rows as a list of dictionaries, a datasets.Dataset or a pandas frame ({error})"
        ) from None
    if not lines:
        raise DataError("data: empty; expected at least one row with a prompt and an answer")
    path = folder / f"{name}.jsonl"
    replace_lines(path, map(dump_line, lines))
    return path


def _plain(value: Any) -> Any:  # noqa: ANN401 - numbers and arrays of numpy
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")
