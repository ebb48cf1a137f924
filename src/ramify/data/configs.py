"""Settings of files of problems and examples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from ramify.core.config import Config, InputFile, Length, PositiveInt, Tokens, ValueCheck


def _as_text(value: object) -> object:
    text = str(value) if isinstance(value, Path) else value
    if isinstance(text, str) and "\0" in text:
        raise ValueError("expected a path without a null character")
    return text


Dataset: TypeAlias = Annotated[str, Length(1, 4096), ValueCheck(_as_text, first=True)]
"""A problem file, or a benchmark: "NAME=PLACE", where PLACE is a file, a folder or "hf:org/name"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleDataConfig(Config):
    """A file of examples in one of the formats of `data/example_formats.py`, or in several.

    `max_tokens` limits the prompt plus its completion; in a pair, plus either side. Longer examples are dropped. `malformed`
    decides whether unusable rows end the run or are dropped.
    """

    train: InputFile
    epochs: PositiveInt = 1
    max_tokens: Tokens
    malformed: Literal["refuse", "drop"] = "refuse"
