"""Settings of files of problems and examples."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from ramify.core.config import Config, Length, PositiveInt, PositiveWeight, Tokens, UserPath, ValueCheck


def _as_text(value: object) -> object:
    text = str(value) if isinstance(value, Path) else value
    if isinstance(text, str) and "\0" in text:
        raise ValueError("expected a path without a null character")
    return text


Dataset: TypeAlias = Annotated[str, Length(1, 4096), ValueCheck(_as_text, first=True)]
"""A problem file, or a benchmark: "NAME=PLACE", where PLACE is a file, a folder or "hf:org/name"."""

Datasets: TypeAlias = Dataset | Annotated[tuple[Dataset, ...], Length(1, 1000)]
"""A problem file or a benchmark, or a list of them; each file may be a folder of shards or "hf:org/name[:table][@revision]"."""

DataFiles: TypeAlias = UserPath | Annotated[tuple[UserPath, ...], Length(1, 1000)]
"""A file, a folder of shards, or "hf:org/name[:table][@revision]"; or several of them."""

_COLUMNS = frozenset(
    [
        "prompt",
        "answer",
        "id",
        "completion",
        "chosen",
        "rejected",
        "messages",
        "conversations",
        "tools",
        "system",
        "instruction",
        "input",
        "output",
        "history",
    ]
)


def _known_columns(columns: "dict[str, str | tuple[str, ...]]") -> "dict[str, str | tuple[str, ...]]":
    if unknown := sorted(columns.keys() - _COLUMNS):
        raise ValueError(
            f"expected names of ours before the =, such as {', '.join(sorted(_COLUMNS))}, got {unknown[0]!r:.40}"
        )
    return columns


_Column: TypeAlias = Annotated[str, Length(1, 200)]
Columns: TypeAlias = Annotated[
    dict[str, _Column | Annotated[tuple[_Column, ...], Length(1, 20)]], ValueCheck(_known_columns)
]
"""By our name for a column the file's: {prompt = "question", answer = "meta.gold"}; or several, {prompt = ["Body", "Question"]}."""

FROM = "from:"
"""Before the place of a data file, in `data.instructions`."""
_TEXT_FILES = (".txt", ".md")


def is_text_file(instructions: str) -> bool:
    """Return True if a value of `data.instructions` names a file with the text: it is one line, and ends in .txt or .md."""
    return "\n" not in instructions and instructions.casefold().endswith(_TEXT_FILES)


def _instructions(value: object) -> object:
    if isinstance(value, bool):
        return value
    is_place = isinstance(value, str) and (is_text_file(value) or value.startswith(FROM))
    if isinstance(value, str) and value.startswith(FROM) and is_text_file(value):
        raise ValueError(
            f"expected a data file behind from:, got {value!r:.60}. Write {value.removeprefix(FROM).strip()!r:.60} for a file that holds "
            "the text alone"
        )
    is_text = isinstance(value, str) and (len(value.split()) > 1 or (bool(value) and not value.isascii()))
    if not (is_place or is_text) or str(value).strip() == FROM or "\0" in str(value):
        raise ValueError(
            "expected true, false, a text of several words, a file that ends in .txt or .md, or from:FILE with a data file, "
            f"got {value!r:.60}"
        )
    return value


Instructions: TypeAlias = Annotated[bool | str, ValueCheck(_instructions, first=True)]
"""The fixed text in front of each question that has no system message. `true` is ramify's own, about the tools' tags.

"from:FILE" is that of a data file: the system message that most of its rows have, or, where alpaca rows have none, their
`instruction` before an `input`, which then stands in the user's turn. A value of one line that ends in .txt or .md is the path
of a file with the text of a system message. Any other value is that text itself, and has several words.
"""

Weights: TypeAlias = Annotated[tuple[PositiveWeight, ...], Length(0, 1000)]
"""For each of several files how often its rows come in an epoch: 2 twice each, 0.5 every second one."""


def refuse_uneven_weights(train: DataFiles, weights: tuple[float, ...]) -> None:
    """Refuse weights that are not one for each of the data (ValueError)."""
    size = len(train) if isinstance(train, tuple) else 1
    if weights and len(weights) != size:
        raise ValueError(
            f"data.weights: expected {size}, one for each entry of data.train, got {len(weights)}. Say one for each, or none."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleDataConfig(Config):
    """Files of examples in one of the formats of `data/example_formats.py`, or in several.

    `columns` says which columns of the files ours are, `weights` how often the rows of each of several files come, `limit` uses the
    first rows only. `instructions` puts a fixed text in front of the prompts that have no system message (`Instructions`).
    `max_tokens` limits the prompt plus its completion; in a pair, plus either side. Longer examples are dropped. `malformed`
    decides whether unusable rows end the run or are dropped.
    """

    train: DataFiles
    columns: Columns = field(default_factory=dict)
    weights: Weights = ()
    limit: PositiveInt | None = None
    instructions: Instructions | None = None
    epochs: PositiveInt = 1
    max_tokens: Tokens
    malformed: Literal["refuse", "drop"] = "refuse"
