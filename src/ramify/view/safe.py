"""Values of a trace for a page: without keys of services, in plain JSON, of bounded size; and without any text of the data.

Texts of a trace may hold everything. The page shows them as text; here lone surrogates and characters that reorder or hide text
become escapes, so that what is on the screen is what the model read.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ramify.core.json_text import cut_to
from ramify.net.secrets import hide, shown

MAX_TEXT = 200_000
"""Characters of a text in a page; more only stop the browser."""
_WORD = 40
_LINES = "\n\t\r"
_JOINERS = "\u200c\u200d"
"""Persian, Indic scripts and emoji need them."""
_KEY_NAME = re.compile("(KEY|TOKEN|SECRET|PASSWORD)$")
_LEAST_KEY = 8
_NAMES = frozenset(
    {
        "source",
        "id",
        "name",
        "kind",
        "parent",
        "status",
        "stop",
        "node",
        "leaf",
        "outcome",
        "algorithm",
        "context",
        "role",
    }
)
"""Keys whose texts are names of ours or of the run, not data."""
_TOOL_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_TABLES = ("info", "arguments")
"""Tables whose keys are data too."""


def hide_keys() -> None:
    """Redact the keys of services in this process's environment from all texts, wherever a run recorded them."""
    hide([value for name, value in os.environ.items() if _KEY_NAME.search(name) and len(value) >= _LEAST_KEY])
    _clean_word.cache_clear()


def safe(value: Any) -> Any:  # noqa: ANN401 - any value of a record
    """Return a value in plain JSON: texts cleaned and cut, floats of six digits, None for a number that is not finite."""
    match value:
        case str():
            return clean(value)
        case bool() | int() | None:
            return value
        case float():
            return _short(value)
        case Mapping():
            return safe_table(value)
    kinds = set(map(type, value))
    if kinds == {float}:
        # The credit of a node is often the same for all its tokens.
        is_constant = value.count(value[0]) == len(value)
        return [_short(value[0])] * len(value) if is_constant else list(map(_short, value))
    return list(value) if kinds <= {int} else [safe(inner) for inner in value]


def safe_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of values as `safe` returns them."""
    return {clean(str(key)): safe(inner) for key, inner in table.items()}


def clean(text: str) -> str:
    """Return a text without keys and credentials, with escapes for what does not print, and cut to `MAX_TEXT`."""
    return _clean_word(text) if len(text) <= _WORD else shown(cut_to(MAX_TEXT, text), keep=_LINES + _JOINERS)


@lru_cache(maxsize=1 << 16)
def _clean_word(text: str) -> str:
    # Keys, ids and tokens come again and again.
    return shown(text, keep=_LINES + _JOINERS)


def _short(number: float) -> float | None:
    return float(f"{number:.6g}") if math.isfinite(number) else None


def redacted_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree's values with every text of the data replaced by its length; names, numbers and the shape stay.

    Token ids, which a tokenizer turns into text again, become zeros.
    """
    return {name: _redacted(inner, name) for name, inner in table.items()}


def _redacted(value: Any, key: str) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str():
            # The policy may have written anything for the name of a tool.
            is_name = key in _NAMES and (key != "name" or _TOOL_NAME.fullmatch(value) is not None)
            return value if is_name or not value else f"[{len(value):,} characters]"
        case Mapping() if key in _TABLES:
            return {}
        case Mapping():
            return redacted_table(value)
        case list() if key == "ids":
            return [0] * len(value)
        case list() if key == "tokens" and set(map(type, value)) == {str}:
            return ["·"] * len(value)
        case list():
            return [_redacted(inner, key) for inner in value]
    return value


def dump(value: Any) -> bytes:  # noqa: ANN401 - JSON
    """Return JSON text in ASCII that may stand inside of a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").encode("ascii")
