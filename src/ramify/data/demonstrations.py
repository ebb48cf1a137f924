"""Demonstrations for supervised training: JSONL rows with `prompt` and `completion`."""

from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.data.problems import read_jsonl, read_messages


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Where an assistant started, and the whole message that it wrote; `<result>` spans are the tool's.

    `row` is its number in the file, from 1.
    """

    problem: Problem
    completion: str
    row: int


def load_demonstrations(path: Path) -> tuple[Demonstration, ...]:
    """Read rows {prompt: [{role, content}], completion: str, id?: str}; other columns are ignored.

    Raises:
        DataError: The file or a row cannot be read; one line that names both.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected a JSONL file of demonstrations, found none")
    demonstrations: list[Demonstration] = []
    for number, row in read_jsonl(path):
        try:
            demonstrations.append(_demonstration(number, row))
        except ValueError as error:
            raise DataError(
                f"{path} row {number}: expected an object with prompt (messages) and completion (text): {error}"
            ) from None
    if not demonstrations:
        raise DataError(f"{path}: expected demonstrations, the file is empty")
    return tuple(demonstrations)


def _demonstration(number: int, row: object) -> Demonstration:
    if not isinstance(row, dict):
        raise ValueError(f"got {type(row).__name__}")
    messages = read_messages(row)
    completion = row.get("completion")
    if not isinstance(completion, str) or not completion.strip():
        raise ValueError("no completion: 'completion' must be text that is not blank")
    completion.encode()  # half of a surrogate pair is legal JSON, but no text
    return Demonstration(Problem(str(row.get("id", number)), messages, ()), completion, number)
