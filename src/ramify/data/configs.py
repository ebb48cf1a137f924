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

Datasets: TypeAlias = Dataset | Annotated[tuple[Dataset, ...], Length(1, 100)]
"""One of them, or several."""

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


def _known_columns(columns: dict[str, str]) -> dict[str, str]:
    if unknown := sorted(columns.keys() - _COLUMNS):
        raise ValueError(
            f"expected names of ours before the =, such as {', '.join(sorted(_COLUMNS))}, got {unknown[0]!r:.40}"
        )
    return columns


Columns: TypeAlias = Annotated[dict[str, Annotated[str, Length(1, 200)]], ValueCheck(_known_columns)]
"""By our name for a column the file's: {prompt = "question", answer = "meta.gold"}."""

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
    first rows only.
    `max_tokens` limits the prompt plus its completion; in a pair, plus either side. Longer examples are dropped. `malformed`
    decides whether unusable rows end the run or are dropped.
    """

    train: DataFiles
    columns: Columns = field(default_factory=dict)
    weights: Weights = ()
    limit: PositiveInt | None = None
    epochs: PositiveInt = 1
    max_tokens: Tokens
    malformed: Literal["refuse", "drop"] = "refuse"
