"""The parameters of a Python function as a JSON schema, and checking and converting the arguments of a call."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
from ramify.core.errors import ConfigError
from ramify.user_files import one_line

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

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values to call the function with; omitted arguments keep the function's own defaults.

        Raises:
            WrongArgumentsError: An argument is missing, unknown or of the wrong type.
        """
        try:
            values = self.model.model_validate(dict(given))
        except ValidationError as error:
            told = [
                f"{'.'.join(map(str, part['loc']))}: {part['msg']}"
                for part in error.errors(include_url=False, include_input=False, include_context=False)
            ]
            more = f"; {len(told) - _MOST_SHOWN} more" if len(told) > _MOST_SHOWN else ""
            wrong = "; ".join(told[:_MOST_SHOWN]) + more
            raise WrongArgumentsError(f"{wrong}. Expected {expected_arguments(self.schema)}") from None
        fields = self.model.model_fields
        return {str(fields[key].alias): getattr(values, key) for key in values.model_fields_set}


def read_parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a function that takes all of them by name.

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
                f"{name}: parameter {str(parameter)!r} is {kind}; a call gives arguments by name"
            )
    return dict(parameters)


def make_arguments(
    parameters: Mapping[str, inspect.Parameter], about: Mapping[str, str], name: str
) -> Arguments:
    """The arguments for `parameters`.

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
    return Arguments(_untitled(model.model_json_schema()), model)


def bind(parameters: Mapping[str, inspect.Parameter], values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Values for some of the parameters, checked and converted.

    Raises:
        ConfigError: A name is unknown, or a value has the wrong type.
    """
    if unknown := sorted(values.keys() - parameters.keys()):
        takes = ", ".join(parameters) or "no parameters"
        raise ConfigError(f"{name}: args: no parameter {unknown[0]!r}; it takes {takes}")
    try:
        return make_arguments({key: parameters[key] for key in values}, {}, name).read(values)
    except WrongArgumentsError as error:
        raise ConfigError(f"{name}: args: {error}") from None


def _field(parameter: inspect.Parameter, about: str | None, name: str) -> tuple[Any, Any]:
    hint = parameter.annotation
    if hint is inspect.Parameter.empty:
        raise ConfigError(f"{name}: parameter {parameter.name!r} has no type hint; expected {_HINTS}")
    try:
        TypeAdapter(hint).json_schema()
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        shown = getattr(hint, "__name__", None) or str(hint)
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"{name}: parameter {parameter.name!r}: a call cannot carry {shown} ({reason}); expected {_HINTS}"
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


def _untitled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema without the titles that pydantic makes from names: they add no information and cost tokens."""
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _untitled(inner) for name, inner in value.items()}
        elif key in ("anyOf", "allOf", "oneOf", "prefixItems"):
            kept[key] = [_untitled(inner) for inner in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            kept[key] = _untitled(value)
        elif key != "title":
            kept[key] = value
    return kept
