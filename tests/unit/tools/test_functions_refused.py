"""Functions that cannot be tools, and settings that cannot hold: one line at start."""

import threading

import pytest

from ramify.core.errors import ConfigError
from ramify.tools.functions import tool_from


def lookup(key: str, limit: int = 3, exact: bool = False) -> str:
    """Looks up."""
    return f"{key} {limit} {exact}"


def bad_hint(when: threading.Lock) -> str:
    """Bad."""
    return str(when)


def no_hint(a, b: int) -> str:
    """Bad."""
    return f"{a}{b}"


def unknown_hint(a: "Missing") -> str:  # noqa: F821
    """Bad."""
    return a


def many(*words: str) -> str:
    """Bad."""
    return " ".join(words)


def free(**words: str) -> str:
    """Bad."""
    return " ".join(words)


def by_place(a: str, /) -> str:
    """Bad."""
    return a


def undocumented(a: str) -> str:
    return a


def wrong_argument(a: str) -> str:
    """Bad.

    Args:
        b: No such thing.
    """
    return a


def wrong_section(a: str) -> str:
    """Bad.

    Args:
        a whatever
    """
    return a


def yields(a: str):
    """Bad."""
    yield a


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        (bad_hint, {}, "bad_hint: parameter 'when': a call cannot carry"),
        (no_hint, {}, "no_hint: parameter 'a' has no type hint; expected str, int"),
        (unknown_hint, {}, "unknown_hint: its signature cannot be read: NameError: name 'Missing'"),
        (many, {}, "many: parameter '[*]words: str' is variadic positional"),
        (free, {}, "free: parameter '[*][*]words: str' is variadic keyword"),
        (by_place, {}, "by_place: parameter 'a: str' is positional-only"),
        (undocumented, {}, "undocumented: expected a docstring"),
        (wrong_argument, {}, "wrong_argument: its docstring describes 'b', which is no parameter"),
        (wrong_section, {}, "wrong_section: its Args section: expected \"name: text\", got 'a whatever'"),
        (yields, {}, "yields: it yields"),
        (3, {}, "int: expected a function or a class, got int"),
        (lookup, {"args": {"size": 3}}, "lookup: args: no parameter 'size'; it takes key, limit, exact"),
        (lookup, {"args": {"limit": "many"}}, "lookup: args: limit: Input should be a valid integer"),
        (lookup, {"timeout_seconds": 0.0}, "lookup: timeout_seconds: expected a finite number above 0"),
        (lookup, {"hedge_seconds": float("nan")}, "lookup: hedge_seconds: expected a finite number above 0"),
        (lookup, {"max_threads": 0}, "lookup: max_threads: expected at least 1"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_start(source, options, told):
    with pytest.raises(ConfigError, match=told) as caught:
        tool_from(source, **options)
    assert "\n" not in str(caught.value)
