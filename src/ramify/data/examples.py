"""Files of training examples: JSONL rows with a `prompt` and whole assistant messages, for SFT (`completion`) and DPO."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.data.problems import read_identifier, read_jsonl, read_messages

Example = TypeVar("Example")

Row: TypeAlias = Mapping[str, Any]


def read_examples(
    path: Path, what: str, columns: str, read: Callable[[Problem, Row, int], Example]
) -> tuple[Example, ...]:
    """Read all rows of a file; the id of a row without `id` is its number.

    Args:
        path: The file.
        what: What error messages call the examples.
        columns: The columns of a row, as error messages name them.
        read: Makes an example from its problem, its row and the row's number (from 1); raises ValueError if it cannot.

    Raises:
        DataError: The file or a row cannot be read; names both.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected a JSONL file of {what}, found none")
    examples: list[Example] = []
    row_of_id: dict[str, int] = {}
    for number, row in read_jsonl(path):
        try:
            if not isinstance(row, dict):
                raise ValueError(f"got {type(row).__name__}")
            identifier = read_identifier(row, str(number))
            if identifier in row_of_id:
                raise ValueError(f"id {identifier!r} is already that of row {row_of_id[identifier]}")
            row_of_id[identifier] = number
            problem = Problem(identifier, read_messages(row), ())
            examples.append(read(problem, row, number))
        except ValueError as error:
            raise DataError(f"{path} row {number}: expected an object with {columns}: {error}") from None
    if not examples:
        raise DataError(f"{path}: expected {what}, the file is empty")
    return tuple(examples)


def read_message(row: Row, name: str) -> str:
    """The text of a column with an assistant message.

    Raises:
        ValueError: It is missing, blank, or not text.
    """
    if name not in row:
        raise ValueError(f"no {name!r}")
    text = row[name]
    if any(isinstance(part, dict) for part in (text if isinstance(text, list) else [text])):
        raise ValueError(
            f"{name!r} must be text, the assistant's whole message with its calls and their results in the dialect's text, not messages"
        )
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name!r} must be text that is not blank")
    text.encode()  # raises at a lone surrogate, which is legal JSON but not text
    return text


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A problem and the assistant's whole message for it; `<result>` spans are tool results.

    `row` is the row in the file, from 1.
    """

    problem: Problem
    completion: str
    row: int


def load_demonstrations(path: Path) -> tuple[Demonstration, ...]:
    """Read rows {prompt: [{role, content}], completion: str, id?: str}; other columns are ignored.

    Raises:
        DataError: The file or a row cannot be read; names both.
    """
    return read_examples(path, "demonstrations", "prompt (messages) and completion (text)", _demonstration)


def _demonstration(problem: Problem, row: Row, number: int) -> Demonstration:
    return Demonstration(problem, read_message(row, "completion"), number)


@dataclass(frozen=True, slots=True)
class Preference:
    """Two whole assistant messages for one problem; `<result>` spans are tool results.

    `row` is the row in the file, from 1.
    """

    problem: Problem
    chosen: str
    rejected: str
    row: int


def load_preferences(path: Path) -> tuple[Preference, ...]:
    """Read rows {prompt: [{role, content}], chosen: str, rejected: str, id?: str}; other columns are ignored.

    Raises:
        DataError: The file or a row cannot be read, a side is missing or blank, or both are equal; names file and row.
    """
    columns = "prompt (messages), chosen and rejected (texts)"
    return read_examples(path, "preference pairs", columns, _preference)


def _preference(problem: Problem, row: Row, number: int) -> Preference:
    chosen, rejected = (read_message(row, name) for name in ("chosen", "rejected"))
    if chosen.strip() == rejected.strip():
        raise ValueError("'chosen' and 'rejected' are equal")
    return Preference(problem, chosen, rejected, number)
