"""A Python function as a tool can call it, read from its signature and its docstring.

The parameters become a JSON schema; a call's arguments are checked and converted, and whatever the function does becomes
a typed result.
"""

import dataclasses
import functools
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import docstring_parser
from docstring_parser import ParseError, numpydoc, rest
from docstring_parser.google import GoogleParser, Section, SectionType
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)

from ramify.chat.arguments import expected_arguments
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.messages import ToolCall, ToolResult, ToolStatus
from ramify.core.tool_schema import plain_schema
from ramify.files.user_code import one_line

_GOOGLE = GoogleParser(
    [
        # Not the library's key for parameters: its way of reading "name (type)" takes cubic time.
        *(Section(title, "entry", SectionType.MULTIPLE) for title in ("Args", "Arguments")),
        *(
            Section(title, "text", SectionType.SINGULAR)
            for title in (
                "Attributes", "Example", "Examples", "Note", "Notes", "Raises", "Return", "Returns", "See Also", "Todo",
                "Warning", "Warnings", "Yields",
            )
        ),
    ]
)  # fmt: skip
_ONLY_ARGUMENTS = re.compile(r"(?:Args|Arguments):\s*\n(?=\S)")
_EMPTY_SECTION = re.compile(r"^(?:Args|Arguments):\s*(?=^\S|\Z)", re.MULTILINE)
_ENTRY = re.compile(r"(?P<name>\w+)\s*(?:\([^)]*\))?\s*:(?P<text>.*)", re.DOTALL)
_BLANKS = re.compile(r"(?<=\S)[^\S\n]+")
_MOST_ERROR_CHARS = 500
_MOST_DOCSTRING_CHARS = 100_000
"""The library's patterns take quadratic time in places."""


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text before the first section, on one line, and the text for each argument."""

    description: str
    arguments: Mapping[str, str]


def read_docstring(text: str) -> Docstring:
    """Read a docstring, as `inspect.getdoc` gives it, in Google's style; without sections of it, in numpy's or Sphinx's.

    Raises:
        ValueError: It is too long, or an entry of the Args section is not an argument.
    """
    if len(text) > _MOST_DOCSTRING_CHARS:
        raise ValueError(
            f"its docstring has {len(text):,} characters. Expected at most {_MOST_DOCSTRING_CHARS:,}."
        )
    if _ONLY_ARGUMENTS.match(text):  # their indentation was cleaned away
        text = text.replace("\n", "\n    ")
    # The library cleans indentation once more, and would take all of it from below a first line.
    text = "\n" + _BLANKS.sub(" ", text)
    try:
        parsed = _GOOGLE.parse(_EMPTY_SECTION.sub("", text))
    except ParseError as error:
        raise ValueError(f'its Args section: {str(error)[:_MOST_ERROR_CHARS]} Write "name: text".') from None
    arguments = {}
    for part in parsed.meta:
        if part.args[0] == "entry":
            # The library splits at the first colon, which may be one of the type: "name (:obj:`int`): text".
            entry = _ENTRY.fullmatch(f"{part.args[1]}:{part.description}")
            if entry is None:
                raise ValueError(
                    f'its Args section: expected "name: text", got {part.args[1][:_MOST_ERROR_CHARS]!r}'
                )
            arguments[entry["name"]] = entry["text"]
    if not parsed.meta:
        parsed = _other_style(text) or parsed
        arguments = {
            name.strip(): part.description
            for part in parsed.params
            if part.args[0] != "attribute"
            for name in part.arg_name.split(",")
        }
    return Docstring(
        _on_one_line(parsed.description), {name: _on_one_line(about) for name, about in arguments.items()}
    )


def _other_style(text: str) -> docstring_parser.Docstring | None:
    for style in (numpydoc, rest):
        try:
            parsed: docstring_parser.Docstring = style.parse(text)
        except Exception:  # noqa: BLE001 - any text without sections is a docstring of Google's style
            continue
        if parsed.description and (parsed.params or parsed.raises or parsed.returns):
            return parsed
    return None


def _on_one_line(text: str | None) -> str:
    return " ".join((text or "").split())


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_HINTS = "str, int, float, bool, list, dict, Literal, Enum, Optional, Union, a dataclass, a TypedDict or a pydantic model"
_MOST_SHOWN = 3


class WrongArgumentsError(Exception):
    """The arguments of a call do not fit; the message tells the policy what was expected."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a function: their JSON schema, and the model that converts a call's arguments to Python values."""

    schema: Mapping[str, Any]
    model: type[BaseModel]

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to call the function with; omitted arguments keep the function's own defaults.

        Raises:
            WrongArgumentsError: An argument is missing, unknown or of the wrong type.
        """
        try:
            values = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            mistakes = [
                f"{'.'.join(map(str, part['loc']))}: {part['msg']}"
                for part in error.errors(include_url=False, include_input=False, include_context=False)
            ]
            more = f"; {len(mistakes) - _MOST_SHOWN} more" if len(mistakes) > _MOST_SHOWN else ""
            wrong = "; ".join(mistakes[:_MOST_SHOWN]) + more
            raise WrongArgumentsError(f"{wrong}. Expected {expected_arguments(self.schema)}") from None
        fields = self.model.model_fields
        return {str(fields[key].alias): getattr(values, key) for key in values.model_fields_set}


def read_parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that takes all of them by name.

    Raises:
        ConfigError: A parameter cannot be given by name, or the hints cannot be read; the message begins with `name`.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    # Postponed type hints are evaluated here, and may raise anything.
    except Exception as error:  # noqa: BLE001
        raise ConfigError(f"{name}: its signature cannot be read: {one_line(error)}") from None
    for parameter in parameters.values():
        if parameter.kind not in _NAMED:
            kind = parameter.kind.description
            raise ConfigError(
                f"{name}: parameter {str(parameter)!r} is {kind}. A call passes arguments by name."
            )
    return dict(parameters)


def make_arguments(
    parameters: Mapping[str, inspect.Parameter], about: Mapping[str, str], name: str
) -> Arguments:
    """Return the arguments for `parameters`.

    Args:
        parameters: The parameters by name.
        about: Each parameter's description in the docstring.
        name: The start of messages.

    Raises:
        ConfigError: A parameter has no type hint, or a hint that has no JSON schema.
    """
    # Fields have generated names, since a parameter may have a name that a model's field cannot ("copy", "_x").
    fields: dict[str, Any] = {
        f"field_{index}": _field(parameter, about.get(key), name)
        for index, (key, parameter) in enumerate(parameters.items())
    }
    model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return Arguments(plain_schema(_untitled(model.model_json_schema())), model)


def bind(parameters: Mapping[str, inspect.Parameter], values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Check and convert values for some of the parameters.

    Raises:
        ConfigError: A name is unknown, or a value has the wrong type.
    """
    if unknown := sorted(values.keys() - parameters.keys()):
        takes = ", ".join(parameters) or "no parameters"
        raise ConfigError(f"{name}: args: no parameter {unknown[0]!r}. It takes {takes}.")
    try:
        return make_arguments({key: parameters[key] for key in values}, {}, name).read(values)
    except WrongArgumentsError as error:
        raise ConfigError(f"{name}: args: {error}") from None


def _field(parameter: inspect.Parameter, about: str | None, name: str) -> tuple[Any, Any]:
    hint = parameter.annotation
    if hint is inspect.Parameter.empty:
        raise ConfigError(f"{name}: parameter {parameter.name!r} has no type hint. Expected {_HINTS}.")
    try:
        TypeAdapter(hint).json_schema()
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        shown = getattr(hint, "__name__", None) or str(hint)
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"{name}: parameter {parameter.name!r}: a call cannot carry {shown} ({reason}). Expected {_HINTS}."
        ) from None
    if parameter.default is inspect.Parameter.empty:
        return hint, Field(alias=parameter.name, description=about)
    shown_default = {"default": parameter.default} if _is_plain(parameter.default) else None
    # The schema only shows the default. If a call omits the argument, so do we, and the function uses its default.
    return hint, Field(
        default_factory=lambda: None,
        alias=parameter.name,
        description=about,
        json_schema_extra=shown_default,
    )


def _is_plain(value: object) -> bool:
    finite = not isinstance(value, float) or math.isfinite(value)
    return value is None or (type(value) in (str, int, float, bool) and finite)


def _untitled(schema: Any) -> Any:  # noqa: ANN401 - a subschema, which may be a boolean
    """Return a JSON schema without the titles that pydantic makes from names: they add no information and cost tokens."""
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            plain[key] = {name: _untitled(inner) for name, inner in value.items()}
        elif key in ("anyOf", "allOf", "oneOf", "prefixItems") and isinstance(value, list):
            plain[key] = [*map(_untitled, value)]
        elif key in ("items", "additionalProperties"):
            plain[key] = _untitled(value)
        elif key != "title":
            plain[key] = value
    return plain


@dataclass(frozen=True, slots=True)
class Callee:
    """A function as a tool can call it, read from its signature and docstring.

    Attributes:
        name: Name of the tool.
        description: Description from the docstring.
        arguments: The parameters that a call supplies.
        is_async: Whether it is a coroutine function.
        bound: Values of the other parameters.
    """

    name: str
    description: str
    arguments: Arguments
    is_async: bool
    bound: Mapping[str, Any]

    @classmethod
    def of(
        cls, function: Callable[..., Any], name: str, args: Mapping[str, Any], spare_docstring: str = ""
    ) -> "Callee":
        """Read signature and docstring of `function`.

        Args:
            function: The function, with `self` bound if it is a method.
            name: Name of the tool.
            args: Values of parameters that calls do not supply.
            spare_docstring: The description if the function has no docstring.

        Raises:
            ConfigError: A parameter's type does not fit a tool call, a value of `args` is wrong, or the docstring is
                missing or wrong.
        """
        code = _innermost(function)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise ConfigError(f"{name}: it yields. Expected a function that returns its answer.")
        parameters = read_parameters(function, name)
        bound = bind(parameters, args, name)
        try:
            text = read_docstring(inspect.getdoc(code) or "")
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
        if unknown := [key for key in text.arguments if key not in parameters]:
            raise ConfigError(f"{name}: its docstring describes {unknown[0]!r}, which is no parameter")
        description = text.description or spare_docstring
        if not description:
            raise ConfigError(
                f"{name}: no docstring. Write one: its text tells the policy what the tool does."
            )
        left = {key: parameter for key, parameter in parameters.items() if key not in bound}
        arguments = make_arguments(left, text.arguments, name)
        return cls(name, description, arguments, inspect.iscoroutinefunction(code), bound)

    def read(self, call: ToolCall) -> dict[str, Any] | ToolResult:
        """Return the arguments to call the function with, or the result for a malformed call."""
        wrong = call.malformed
        if wrong is None:
            try:
                return self.arguments.read(call.arguments)
            except WrongArgumentsError as error:
                wrong = str(error)
            except Exception as error:  # noqa: BLE001 - a type hint may run code of its own
                return self._failure(call, error)
        return ToolResult(call.id, ToolStatus.MALFORMED, f"The call to {self.name} was not run: {wrong}.")

    def answer(self, call: ToolCall, function: Callable[..., Any], values: Mapping[str, Any]) -> ToolResult:
        """Call a blocking function. Only a RamifyError is raised: it ends the run."""
        try:
            return self._result(call, function(**values))
        except RamifyError:
            raise
        except Exception as error:  # noqa: BLE001 - the policy is shown any error
            return self._failure(call, error)

    async def answer_async(
        self, call: ToolCall, function: Callable[..., Any], values: Mapping[str, Any]
    ) -> ToolResult:
        """Call a coroutine function, as `answer` does a blocking one."""
        try:
            return self._result(call, await function(**values))
        except RamifyError:
            raise
        except Exception as error:  # noqa: BLE001 - the policy is shown any error
            return self._failure(call, error)

    def _result(self, call: ToolCall, value: object) -> ToolResult:
        """Return the result for a returned value: a string as it is, anything else as compact JSON."""
        # Not `value == ""`, which is no bool for an array or a table.
        if value is None or (isinstance(value, str) and not value):
            return ToolResult(call.id, ToolStatus.EMPTY, f"{self.name} returned nothing.")
        if isinstance(value, str) and not isinstance(value, Enum):
            return ToolResult(call.id, ToolStatus.OK, str(value))
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
        return ToolResult(call.id, ToolStatus.OK, text)

    def _failure(self, call: ToolCall, error: Exception) -> ToolResult:
        text = f"{self.name} failed: {one_line(error)}"[:_MOST_ERROR_CHARS]
        return ToolResult(call.id, ToolStatus.ERROR, text, {"raised": type(error).__name__})


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind a `functools.partial` or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    is_code = inspect.isroutine(function)
    return function if is_code else type(function).__call__


def _plain(value: object) -> object:
    """Return a JSON form for the types that tool arguments can also have: models, dataclasses and enums."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"it returned {type(value).__name__}, which is neither text nor JSON")
