"""Files of training examples: JSONL rows with a `prompt` and whole assistant messages."""

from collections.abc import Callable, Mapping
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
