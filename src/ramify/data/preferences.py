"""Preference pairs: JSONL rows with `prompt`, `chosen` and `rejected`."""

from dataclasses import dataclass
from pathlib import Path

from ramify.core.messages import Problem
from ramify.data.examples import Row, read_examples, read_message


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
