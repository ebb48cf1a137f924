"""Demonstrations for supervised training: JSONL rows with `prompt` and `completion`."""

import json
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.messages import Message, Problem


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Where an assistant started, and the whole message that it wrote; `<result>` spans are the tool's."""

    problem: Problem
    completion: str


def load_demonstrations(path: Path) -> tuple[Demonstration, ...]:
    """Read rows {prompt: [{role, content}], completion: str, id?: str}; other columns are ignored.

    Raises:
        DataError: The file or a row cannot be read; one line that names both.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected a JSONL file of demonstrations, found none")
    demonstrations: list[Demonstration] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                demonstrations.append(_demonstration(path, number, line))
    if not demonstrations:
        raise DataError(f"{path}: expected demonstrations, the file is empty")
    return tuple(demonstrations)


def _demonstration(path: Path, number: int, line: str) -> Demonstration:
    place = f"{path} row {number}"
    try:
        row = json.loads(line)
        messages = tuple(Message.of(item["role"], item["content"]) for item in row["prompt"])
        completion = row["completion"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{place}: expected an object with prompt (messages) and completion (text): {error!r}"
        ) from None
    if not messages or not isinstance(completion, str) or not completion.strip():
        raise DataError(f"{place}: expected at least one message and a completion that is not blank")
    return Demonstration(Problem(str(row.get("id", number)), messages, ()), completion)
