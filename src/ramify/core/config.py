"""Settings that a component owns and a recipe sets: their base class, and types for their values.

Each number has a smallest and a largest value, and `true` is not a number. The bounds are far outside of what anybody
trains with. Values beyond them would later overflow, hang or fill memory. pydantic reads the types and checks a recipe's
values; nothing here imports it.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints
from urllib.parse import urlsplit

from ramify.core.errors import ConfigError, in_one_line

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class _ConfigType(type):
    """The type of `Config` and its subclasses: values given in Python are checked and converted as a recipe's are."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The keys with their types and defaults, for `help` and completion, which otherwise read those of `__call__`."""
        hints = get_type_hints(cls)
        keys = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
        return inspect.Signature(
            [key.replace(annotation=hints.get(key.name, key.annotation)) for key in keys]
        )

    def __call__(cls, *args: Any, **values: Any) -> Any:  # noqa: ANN401 - as the subclass's constructor
        """Construct it. pydantic itself does not call this.

        Raises:
            ConfigError: A value is wrong, missing or unknown; names the keys.
        """
        from pydantic import ValidationError

        # With too many arguments, or one of them twice, the constructor says so.
        names = [field.name for field in fields(cls) if field.init and not field.kw_only]  # type: ignore[arg-type]
        if len(args) > len(names) or not values.keys().isdisjoint(names[: len(args)]):
            return super().__call__(*args, **values)
        try:
            return _adapter(cls).validate_python({**dict(zip(names, args, strict=False)), **values})
        except ValidationError as error:
            mistakes = error.errors(include_url=False)
        lines: dict[str, list[str]] = {}
        for mistake in mistakes:
            keys = [str(part) for part in mistake["loc"] if isinstance(part, int) or part.isidentifier()]
            # If a value fits none of several types, pydantic reports a mistake for each; the first is enough.
            lines.setdefault(key := ".".join([cls.__name__, *keys]), in_words(key, mistake))
        raise ConfigError(in_one_line([line for each in lines.values() for line in each]))


@cache
def _adapter(schema: type) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


_PLAIN_WORDS = {
    "missing": "expected a value, found none",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "dataclass_type": "expected a table",
    "tuple_type": "expected a list",
    "dict_type": "expected a table",
    "bool_type": "expected true or false",
    "path_type": "expected a path",
    "unexpected_keyword_argument": "unknown key",
}
_NAMED_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*: ")


def in_words(key: str, mistake: Mapping[str, Any]) -> list[str]:
    """Return one line for each thing that is wrong at a key, in a user's words, from an error as pydantic lists it."""
    message = _PLAIN_WORDS.get(mistake["type"], mistake["msg"].removeprefix("Value error, "))
    if mistake["type"] == "value_error":
        # A check across sections may report several mistakes.
        return [_with_key(key, line) for line in message.split("\n")]
    if mistake["type"] in ("too_short", "too_long") and isinstance(mistake["input"], list | tuple):
        bounds, length = mistake["ctx"], len(mistake["input"])
        if length >= bounds.get("min_length", length + 1) and mistake["type"] == "too_short":
            return []  # pydantic counts the right entries; the wrong ones have lines of their own
        bound = f"at least {n}" if (n := bounds.get("min_length")) else f"at most {bounds.get('max_length')}"
        return [_with_key(key, f"expected a list of {bound}, got {length}")]
    message = re.sub("^Input should be (?=greater|less)", "expected a number ", message)
    message = re.sub("^Input should (be|have) ", "expected ", message)
    value = mistake["input"]
    has_value = mistake["type"] not in ("missing", "unexpected_keyword_argument")
    got = "" if not has_value else ", got a table" if isinstance(value, dict) else f", got {value!r}"
    return [_with_key(key, message + got)]


def _with_key(key: str, message: str) -> str:
    """Prefix a message with its key; a message of a table's check begins with the key that it is about."""
    if _NAMED_KEY.match(message):
        return f"{key}.{message}" if key else message
    return f"{key or 'recipe'}: {message[0].lower()}{message[1:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(metaclass=_ConfigType):
    """Settings of a component, with the same keys and bounds in a recipe and in Python; pydantic checks both."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def values(self) -> dict[str, Any]:
        """Return the settings by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def is_changed(self, key: str) -> bool:
        """Return True if a key differs from its default. Its presence says nothing: a resolved recipe has every key."""
        return bool(getattr(self, key) != next(field.default for field in fields(self) if field.name == key))


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number, which must be finite and neither a text nor a boolean; without bounds for true and false."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Return pydantic's schema of the number."""
        bounds = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        finite = {"allow_inf_nan": False} if source is float else {}
        return {**handler(source), "strict": True, **finite, **bounds}


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of a text's length."""

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Return pydantic's schema of the text."""
        return {**handler(source), "min_length": self.least, "max_length": self.most}


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """A check of a value: returns it, or raises ValueError. `first`: it gets any value, else those of the type."""

    check: Callable[[Any], Any]
    first: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Return pydantic's schema with the check before or behind it."""
        function = {"type": "no-info", "function": self.check}
        kind = "function-before" if self.first else "function-after"
        return {"type": kind, "function": function, "schema": handler(source)}


Switch = Annotated[bool, Within()]

# Whole numbers.

Count = Annotated[int, Within(ge=0, le=2**31 - 1)]
PositiveInt = Annotated[int, Within(ge=1, le=2**31 - 1)]
Tokens = Annotated[int, Within(ge=1, le=2**24)]
"""Tokens of a sequence or a row."""
Calls = Annotated[int, Within(ge=0, le=2**16)]
"""Tool calls of one trajectory."""
Trajectories = Annotated[int, Within(ge=1, le=4096)]
"""Trajectories of one tree."""
Reserved = Annotated[int, Within(ge=1, le=2**16)]
"""Counts of things that each take memory: slots, ranks, attempts, passages of an answer."""
Rounds = Annotated[int, Within(ge=1, le=1000)]
"""Rounds of growing within one step."""
Threads = Annotated[int, Within(ge=1, le=512)]
Attempts = Annotated[int, Within(ge=1, le=20)]
"""Attempts of one request to a service."""
Level = Annotated[int, Within(ge=0, le=4)]
"""Isolation level of the sandbox."""
Seed = Annotated[int, Within(ge=-(2**63), le=2**63 - 1)]

# Shares, probabilities and edges below one.

Fraction = Annotated[float, Within(ge=0, le=1)]
PositiveFraction = Annotated[float, Within(ge=1e-9, le=1)]
BelowOne = Annotated[float, Within(ge=0, lt=1)]
InsideOne = Annotated[float, Within(ge=1e-9, lt=1)]

# Factors and coefficients.

Weight = Annotated[float, Within(ge=0, le=1000)]
PositiveWeight = Annotated[float, Within(gt=0, le=1000)]
SignedWeight = Annotated[float, Within(ge=-1000, le=1000)]
FromOne = Annotated[float, Within(ge=1, le=1000)]
AboveOne = Annotated[float, Within(gt=1, le=1000)]
Magnitude = Annotated[float, Within(ge=1e-9, le=1e6)]
"""The alpha of an adapter, the norm of a gradient."""
LearningRate = Annotated[float, Within(ge=1e-12, le=10)]
"""With a smaller rate no float32 weight changes."""

# Times, entropies, temperatures.

Seconds = Annotated[float, Within(ge=1e-3, le=1e6)]
Deadline = Annotated[float, Within(gt=0, le=1e6)]
"""Seconds; on a virtual clock any part of one may matter."""
Days = Annotated[float, Within(ge=1e-6, le=1e5)]
Rate = Annotated[float, Within(ge=1e-6, le=1e5)]
"""Requests per second."""
Nats = Annotated[float, Within(gt=0, le=20)]
"""An entropy; no vocabulary reaches 20 nats."""


def _not_tiny(temperature: float) -> float:
    if 0 < temperature < 1e-3:
        raise ValueError(f"expected 0 (greedy) or at least 0.001, got {temperature}")
    return temperature


Temperature = Annotated[float, Within(ge=0, le=100), ValueCheck(_not_tiny)]
"""Divides the logits; 0 is greedy."""


def _usable(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("expected a path without a null character")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # Recipes are UTF-8, so one with this path could not be saved in the run's folder.
        raise ValueError("expected a path in UTF-8. Rename the file or folder") from None
    return path


UserPath = Annotated[Path, ValueCheck(_usable)]
InputFile = Annotated[Path, ValueCheck(_usable), "a file that is read"]
"""A file that must be there when a run begins; `commands.check_files` looks for those of a whole recipe."""

# Names, addresses.

Name = Annotated[str, Length(1, 200)]
_VARIABLE = re.compile(r"(?=.*(KEY|TOKEN|SECRET|PASSWORD))[A-Z][A-Z0-9_]{0,63}")


def may_hold_key(variable: str) -> bool:
    """Return True if an environment variable may hold a key: a recipe can name no other for one."""
    return any(word in variable.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))


def _variable(name: Any) -> str:  # noqa: ANN401 - any TOML value
    """Return the name of an environment variable; anything that may be a key is refused and not shown."""
    if isinstance(name, str) and _VARIABLE.fullmatch(name):
        return name
    raise ValueError(
        "expected the name of an environment variable, in capitals, with KEY, TOKEN, SECRET or PASSWORD in it, such as "
        "JUDGE_API_KEY. The value is not shown, because it may be the key itself"
    )


Variable = Annotated[str, ValueCheck(_variable, first=True)]
"""Name of an environment variable with a key; keys come from nowhere else."""


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname
        secret = parts.username or parts.password or parts.query or parts.fragment
        _ = parts.port
    except ValueError:
        named = secret = None
    if not named:
        raise ValueError("expected an address such as http://127.0.0.1:8000")
    if secret:
        raise ValueError("expected an address without a key. Put the key into an environment variable")
    return url


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise ValueError(f"expected a network such as 10.1.0.0/16 ({error})") from None
    return text


def _addresses(value: Any) -> str | tuple[str, ...]:  # noqa: ANN401 - any TOML value
    if isinstance(value, str):
        return _address(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("expected an address such as http://127.0.0.1:8000, or a list of them")
    if len(value) > _MOST_SERVERS:
        raise ValueError(f"expected at most {_MOST_SERVERS} addresses, got {len(value)}")
    addresses = tuple(_entry(number, url) for number, url in enumerate(value, start=1))
    plain = [address.rstrip("/") for address in addresses]
    if twice := [address for address in plain if plain.count(address) > 1]:
        raise ValueError(f"expected each address once, got {twice[0]} twice")
    return addresses


def _entry(number: int, url: Any) -> str:  # noqa: ANN401 - any TOML value
    """Return an entry of a list of addresses; what is wrong with it may hold a key, so only its number is shown."""
    try:
        return _address(url if isinstance(url, str) else "")
    except ValueError as error:
        raise ValueError(f"entry {number} of the list: {error}") from None


_MOST_SERVERS = 1024

ServiceUrl = Annotated[str, ValueCheck(_address)]
ServiceUrls = Annotated[str | tuple[str, ...], ValueCheck(_addresses, first=True)]
"""The address of a service, or those of several equal servers."""
Network = Annotated[str, ValueCheck(_network)]
