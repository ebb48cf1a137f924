"""JSON from outside: any fault is one line, and depth and digits are bounded. Texts of others, cut to a limit."""

import json
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 100
"""Deepest nesting of lists and objects. Python's own functions (copying, comparing, writing JSON) fail near 1,000."""

MAX_ECHO = 40
"""Characters of a wrong value or key that an error shows."""


def parse_json(text: str | bytes, *, unique_keys: bool = False, max_depth: int = MAX_DEPTH) -> Any:  # noqa: ANN401 - any JSON value
    """Parse a JSON value. NaN and Infinity are accepted, since Python writes them.

    Args:
        text: The JSON text; bytes must be UTF-8.
        unique_keys: Refuse an object with a duplicate key; JSON readers would keep the last value and drop the others.
        max_depth: Deepest nesting of lists and objects.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has a number with thousands of digits.
    """
    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(plain, object_pairs_hook=unique_object if unique_keys else None)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        raise ValueError(f"broken JSON: {error.msg} at {line}column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError(f"nested more than {max_depth} deep") from None
    except ValueError as error:
        reason = str(error)
        # Python's own message about long numbers advises to call a function of `sys`.
        raise ValueError("a number has too many digits" if "digits" in reason else reason) from None
    if _may_be_deep(text, max_depth) and _is_deep(value, max_depth):
        raise ValueError(f"nested more than {max_depth} deep")
    return value


def parse_object(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: As for `parse_json`, or the value is not an object.
    """
    value = parse_json(text, max_depth=max_depth)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {_KINDS.get(type(value), 'null')}")
    return value


_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these keys and values, as `json` passes them to its `object_pairs_hook`.

    Raises:
        ValueError: A key appears twice.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"key {twice[:MAX_ECHO]!r} appears twice in one object")
    return value


def _may_be_deep(text: str | bytes, max_depth: int) -> bool:
    """Count the brackets, as a quick test: few texts have many."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{") > max_depth
    return text.count("[") + text.count("{") > max_depth


def _is_deep(value: object, max_depth: int) -> bool:
    level: list[object] = [value] if type(value) in _NESTED else []
    for _ in range(max_depth):
        level = [inner for outer in level if outer for inner in _inside(outer)]
        if not level:
            return False
    return True


_NESTED = frozenset({dict, list})


def _inside(value: Any) -> Iterable[object]:  # noqa: ANN401 - an object or a list
    inner = value.values() if type(value) is dict else value
    # The test runs in C: most lists are long and hold numbers only.
    return () if _NESTED.isdisjoint(map(type, inner)) else [item for item in inner if type(item) in _NESTED]


def cut_to(limit: int, text: str) -> str:
    """Return at most `limit` characters of a text; a longer one ends with how many more there were."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]}\n[cut: {left_out} more characters]"
