"""Demonstrations for supervised training: JSONL rows with `prompt` and `completion`."""

from dataclasses import dataclass
from pathlib import Path

from ramify.core.messages import Problem
from ramify.data.examples import Row, read_examples, read_message


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
