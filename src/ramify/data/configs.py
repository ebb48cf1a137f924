"""Settings of files of examples."""

from dataclasses import dataclass
from typing import Literal

from ramify.core.config import Config, PositiveInt, Tokens, UserPath


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleDataConfig(Config):
    """A file of examples in one of the formats of `data/example_formats.py`, or in several.

    `max_tokens` limits the prompt together with what follows it; of a pair, with either side. Longer examples are left out. Rows
    that cannot be used end the run, or are left out, too.
    """

    train: UserPath
    epochs: PositiveInt = 1
    max_tokens: Tokens
    malformed: Literal["refuse", "drop"] = "refuse"
