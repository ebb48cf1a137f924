"""Preference pairs: JSONL rows with `prompt`, `chosen` and `rejected`."""

from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.data.problems import read_jsonl, read_messages


@dataclass(frozen=True, slots=True)
class Preference:
    """Two whole messages of an assistant from one prompt; `<result>` spans are the tool's.

    `row` is its number in the file, from 1.
    """

    problem: Problem
    chosen: str
    rejected: str
    row: int


def load_preferences(path: Path) -> tuple[Preference, ...]:
    """Read rows {prompt: [{role, content}], chosen: str, rejected: str, id?: str}; other columns are ignored.

    Raises:
        DataError: The file or a row cannot be read, a side is missing or blank, or both are equal; one line that
            names file and row.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected a JSONL file of preference pairs, found none")
    preferences: list[Preference] = []
    for number, row in read_jsonl(path):
        try:
            preferences.append(_preference(number, row))
        except ValueError as error:
            raise DataError(
                f"{path} row {number}: expected an object with prompt (messages), chosen and rejected (texts): {error}"
            ) from None
    if not preferences:
        raise DataError(f"{path}: expected preference pairs, the file is empty")
    return tuple(preferences)


def _preference(number: int, row: object) -> Preference:
    if not isinstance(row, dict):
        raise ValueError(f"got {type(row).__name__}")
    messages = read_messages(row)
    chosen, rejected = (_side(row, name) for name in ("chosen", "rejected"))
    if chosen.strip() == rejected.strip():
        raise ValueError("'chosen' and 'rejected' are equal")
    return Preference(Problem(str(row.get("id", number)), messages, ()), chosen, rejected, number)


def _side(row: dict[str, object], name: str) -> str:
    if name not in row:
        raise ValueError(f"no {name!r}")
    text = row[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name!r} must be text that is not blank")
    text.encode()  # half of a surrogate pair is legal JSON, but no text
    return text
