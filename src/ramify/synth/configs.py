"""Settings of a synthesis: hints, and limits of rows."""

from dataclasses import dataclass
from typing import Literal

from ramify.core.config import Config, Count, InputFile, PositiveFraction, PositiveInt, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class HintsConfig(Config):
    """Answers that continue inside earlier ones, after a hint (START, arXiv 2503.04625): at most `per_question`, one after each.

    `after` selects the earlier answers: those without tools, as in the paper, or with them. `library` is a file of hints; the
    default is the shipped one.
    """

    per_question: PositiveInt = 2
    after: Literal["direct", "tools"] = "direct"
    library: InputFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityConfig(Config):
    """Limits of a row: at most `max_calls` calls (beta), and the tokens of a demonstration within `max_tokens`.

    A question counts as answered, with or without tools, from a share of `right_at` on; it gives at most `rows_per_question`
    rows.
    """

    max_calls: Count = 5
    max_tokens: Tokens = 15_000
    right_at: PositiveFraction = 0.5
    rows_per_question: PositiveInt = 1
