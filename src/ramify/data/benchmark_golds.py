"""The accepted answers of a benchmark's row, as texts; blank ones are dropped, and no answer is split."""

import math
import re
from typing import Literal, TypeAlias

GoldForm: TypeAlias = Literal["plain", "rationale"]
"""plain: a text, a number or a list of them; rationale: GSM8K's worked answer, whose last line is "#### 1,234"."""

_NUMBER = re.compile(r"[-+]?[$]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)%?")
_HIDDEN = "?"


def read_golds(value: object, form: GoldForm) -> tuple[str, ...]:
    """The accepted answers in `value`, stripped and without duplicates.

    Only a list holds several answers. A text is one answer: "[1, 2)" is an interval, "Paris, Texas" a place.

    Raises:
        ValueError: There is no answer, it is hidden ("?"), or one is neither text nor a number.
    """
    values = value if isinstance(value, list) else [value]
    texts = [text for each in values if (text := _text(each))]
    if not texts:
        raise ValueError("is an empty list" if values == [] else "is blank")
    if _HIDDEN in texts:
        raise ValueError('is "?", so the answers of this split are hidden; use a split that has them')
    return tuple(dict.fromkeys(map(_after_rationale, texts) if form == "rationale" else texts))


def is_missing(value: object) -> bool:
    """Whether a field is empty: null, or NaN, which tables use for null."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _text(value: object) -> str:
    if is_missing(value):
        return ""
    if isinstance(value, str):
        value.encode()  # raises at a lone surrogate, which is legal JSON but not text
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, int | float) or value in (math.inf, -math.inf):
        raise ValueError(f"must be text, a number or a list of them, got {value!r:.40}")
    # Tables turn a column of integers into floats if it contains a null.
    return str(int(value)) if value == int(value) else repr(value)


def _after_rationale(text: str) -> str:
    number = text.rpartition("####")[2].strip()
    if not _NUMBER.fullmatch(number):
        raise ValueError(f'must be a number or end in "#### number", got {number!r:.40}')
    return number.replace(",", "")
