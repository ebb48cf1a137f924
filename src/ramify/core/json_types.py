"""Typed reading of parsed JSON: each reader checks a value, and the error names the field that is wrong.

A reader takes a value and returns it as the record that it stands for. pydantic cannot do this here: it refuses lone surrogates,
which sampled texts may hold.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from enum import StrEnum
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from ramify.core.json_text import MAX_ECHO

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Reader: TypeAlias = Callable[[Any], T]

MAX_WHOLE = 1 << 53
"""Whole numbers of a record are smaller than this; every reader of JSON gives them back exactly."""

_MAX_ID = 1 << 31
"""Ids of tokens and numbers of children are smaller; a tokenizer's own code takes no larger ones."""


class FieldError(ValueError):
    """A value that is not what a record holds. As text: the field, what was expected and what it is."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self._reason, self._path = reason, ""

    @classmethod
    def of(cls, expected: str, value: object) -> "FieldError":
        """Make the error of a wrong value."""
        shown = value if isinstance(value, str | int | float | None) else type(value).__name__
        text = repr(shown) if isinstance(value, str) else _KINDS.get(type(value), str(shown))
        return cls(f"expected {expected}, got {text[:MAX_ECHO]}")

    def at(self, step: str | int) -> "FieldError":
        """Add the key or the index of the value that holds the wrong one."""
        name = f"[{step}]" if isinstance(step, int) else step[:MAX_ECHO]
        self._path = f"{name}{'' if self._path.startswith('[') or not self._path else '.'}{self._path}"
        return self

    def __str__(self) -> str:
        """Return the field and the reason."""
        return f"{self._path}: {self._reason}" if self._path else self._reason


_KINDS = {dict: "an object", list: "a list", type(None): "null", bool: "true or false"}


def text(value: Any) -> str:  # noqa: ANN401 - any JSON value, as in all readers
    """Read a text."""
    if type(value) is str:
        return value
    raise FieldError.of("a text", value)


def truth(value: Any) -> bool:  # noqa: ANN401
    """Read true or false."""
    if type(value) is bool:
        return value
    raise FieldError.of("true or false", value)


def number(value: Any) -> float:  # noqa: ANN401
    """Read a finite number; a whole one stays an int."""
    if type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return value  # type: ignore[no-any-return]
    raise FieldError.of("a finite number", value)


def whole(value: Any) -> int:  # noqa: ANN401
    """Read a whole number of at most 53 bits."""
    if type(value) is int and -MAX_WHOLE < value < MAX_WHOLE:
        return value
    raise FieldError.of("a whole number", value)


def count(value: Any) -> int:  # noqa: ANN401
    """Read a whole number of at least 0."""
    if type(value) is int and 0 <= value < MAX_WHOLE:
        return value
    raise FieldError.of("a whole number of at least 0", value)


def ids(value: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Read a list of token ids or of numbers of children."""
    if type(value) is list and (not value or _are_ids(value)):
        return tuple(value)
    raise FieldError.of("a list of ids below 2^31", value)


def _are_ids(values: list[Any]) -> bool:
    # In C: traces hold hundreds of thousands of them.
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < _MAX_ID


def numbers(value: Any) -> tuple[float, ...]:  # noqa: ANN401
    """Read a list of finite numbers; whole ones stay ints."""
    if type(value) is list and _are_finite(value):
        return tuple(value)
    raise FieldError.of("a list of finite numbers", value)


def _are_finite(values: list[Any]) -> bool:
    try:
        return set(map(type, values)) <= {int, float} and all(map(math.isfinite, values))
    except OverflowError:
        return False


def json_object(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Read an object of any JSON values with finite numbers."""
    if type(value) is not dict:
        raise FieldError.of("a JSON object", value)
    level: list[Any] = [value] if value else []
    while level:
        inner = list(chain.from_iterable(item.values() if type(item) is dict else item for item in level))
        if any(type(item) is float and not math.isfinite(item) for item in inner):
            raise FieldError("holds a number that is not finite")
        level = [item for item in inner if type(item) in (dict, list)]
    return value


def optional(read: Reader[T]) -> Reader[T | None]:
    """Make a reader that also takes null."""
    return lambda value: None if value is None else read(value)


def each(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """Make a reader of a list."""

    def read_list(value: Any) -> tuple[T, ...]:  # noqa: ANN401
        if type(value) is not list:
            raise FieldError.of("a list", value)
        items: list[T] = []
        try:
            for item in value:
                items.append(read(item))
        except FieldError as error:
            raise error.at(len(items)) from None
        return tuple(items)

    return read_list


def mapping(read: Reader[T]) -> Reader[dict[str, T]]:
    """Make a reader of an object with any keys."""

    def read_mapping(value: Any) -> dict[str, T]:  # noqa: ANN401
        if type(value) is not dict:
            raise FieldError.of("a JSON object", value)
        return _read_fields(value, ((key, read) for key in value))

    return read_mapping


def one_of(names: Iterable[str]) -> Reader[Any]:
    """Make a reader of one of these texts."""
    known = tuple(names)

    def read_name(value: Any) -> Any:  # noqa: ANN401
        if type(value) is str and value in known:
            return value
        raise FieldError.of(f"one of {', '.join(known)}", value)

    return read_name


def member(kind: type[E]) -> Reader[E]:
    """Make a reader of an enumeration's value."""
    read_name, members = one_of(kind), {str(item): item for item in kind}

    def read_member(value: Any) -> E:  # noqa: ANN401
        if type(value) is str and value in members:
            return members[value]
        return members[read_name(value)]

    return read_member


def record(make: Callable[..., T], /, **fields: Reader[Any]) -> Reader[T]:
    """Make a reader of an object with exactly these fields; it calls `make` with them."""
    return sparse(make, (), **fields)


def sparse(make: Callable[..., T], defaulted: Iterable[str], /, **fields: Reader[Any]) -> Reader[T]:
    """Make a reader as `record` does; the fields that `make` has a default for, `defaulted`, may be absent."""
    required = fields.keys() - set(defaulted)
    # With names from the parsed text, Python would compare each with all parameters of `make`, letter by letter.
    named = {name: (name, read) for name, read in fields.items()}

    def read_record(value: Any) -> T:  # noqa: ANN401
        if type(value) is not dict:
            raise FieldError.of("a JSON object", value)
        if not (required <= value.keys() <= fields.keys()):
            _require_fields(value, required, fields)
        result: dict[str, Any] = {}
        name = ""
        try:
            for key, item in value.items():
                name, read = named[key]
                result[name] = read(item)
        except FieldError as error:
            raise error.at(name) from None
        return make(**result)

    return read_record


def part(**fields: Reader[Any]) -> Reader[dict[str, Any]]:
    """Make a reader of an object with at least these fields; the others stay as they are."""

    def read_part(value: Any) -> dict[str, Any]:  # noqa: ANN401
        if type(value) is not dict:
            raise FieldError.of("a JSON object", value)
        for name in fields:
            if name not in value:
                raise FieldError(f"lacks the field {name!r}")
        return value | _read_fields(value, fields.items())

    return read_part


def by_kind(**kinds: Reader[T]) -> Reader[T]:
    """Make a reader of an object whose "kind" says which of the readers takes the other fields."""
    read_kind = one_of(kinds)

    def read_tagged(value: Any) -> T:  # noqa: ANN401
        if type(value) is not dict:
            raise FieldError.of("a JSON object", value)
        try:
            kind = read_kind(value.get("kind"))
        except FieldError as error:
            raise error.at("kind") from None
        return kinds[kind]({name: item for name, item in value.items() if name != "kind"})

    return read_tagged


def _read_fields(value: Mapping[str, Any], fields: Iterable[tuple[str, Reader[T]]]) -> dict[str, T]:
    result: dict[str, T] = {}
    name = ""
    try:
        for name, read in fields:
            result[name] = read(value[name])
    except FieldError as error:
        raise error.at(name) from None
    return result


def _require_fields(value: Mapping[str, Any], required: Set[str], fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name in required and name not in value:
            raise FieldError(f"lacks the field {name!r}")
    unknown = next(name for name in value if name not in fields)
    raise FieldError(f"has an unknown field {unknown[:MAX_ECHO]!r}")
