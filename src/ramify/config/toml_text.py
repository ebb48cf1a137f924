"""Writes recipes as TOML; the standard library can only read it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def toml_text(table: Mapping[str, Any]) -> str:
    """A table of plain values (text, numbers, booleans, lists, tables) as TOML; keys without a value (None) are left out."""
    return "\n".join(_lines(table, "")).strip("\n") + "\n"


def _lines(table: Mapping[str, Any], place: str) -> Iterator[str]:
    below = {key: value for key, value in table.items() if isinstance(value, Mapping) or _has_tables(value)}
    for key, value in table.items():
        if key not in below and value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in below.items():
        name = f"{place}{_key(key)}"
        if isinstance(value, Mapping):
            yield from ("", f"[{name}]", *_lines(value, f"{name}."))
        else:
            for each in value:
                yield from ("", f"[[{name}]]", *_lines(each, f"{name}."))


def _has_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _value(value: object) -> str:
    if isinstance(value, str):
        # JSON's escapes are valid in TOML; only DEL must be escaped in TOML and is not in JSON.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_value(each)}" for key, each in value.items() if each is not None)
        return f"{{ {', '.join(pairs)} }}"
    # Numbers and booleans are written as in JSON.
    return json.dumps(value)


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else _value(key)
