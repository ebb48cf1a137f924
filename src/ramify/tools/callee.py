"""Calling a user's Python function as a tool: arguments in, a typed result out, whatever the function does."""

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel

from ramify.core.errors import ConfigError, RamifyError
from ramify.core.messages import ToolCall, ToolResult, ToolStatus
from ramify.tools.docstrings import read_docstring
from ramify.tools.signatures import (
    Arguments,
    WrongArgumentsError,
    bind,
    make_arguments,
    read_parameters,
)
from ramify.user_files import one_line

_MOST_ERROR_CHARS = 500


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
            raise ConfigError(f"{name}: it yields; expected a function that returns its answer")
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
            raise ConfigError(f"{name}: expected a docstring; its text tells the policy what the tool does")
        left = {key: parameter for key, parameter in parameters.items() if key not in bound}
        arguments = make_arguments(left, text.arguments, name)
        return cls(name, description, arguments, inspect.iscoroutinefunction(code), bound)

    def read(self, call: ToolCall) -> dict[str, Any] | ToolResult:
        """The arguments to call the function with, or the result for a malformed call."""
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
        """Call a blocking function.

        Raises:
            RamifyError: The function raised it to end the run.
        """
        try:
            return self._result(call, function(**values))
        except RamifyError:
            raise
        except Exception as error:  # noqa: BLE001 - the policy is shown any error
            return self._failure(call, error)

    async def answer_async(
        self, call: ToolCall, function: Callable[..., Any], values: Mapping[str, Any]
    ) -> ToolResult:
        """Call a coroutine function.

        Raises:
            RamifyError: The function raised it to end the run.
        """
        try:
            return self._result(call, await function(**values))
        except RamifyError:
            raise
        except Exception as error:  # noqa: BLE001 - the policy is shown any error
            return self._failure(call, error)

    def _result(self, call: ToolCall, value: object) -> ToolResult:
        """The result for a returned value: a string as it is, anything else as compact JSON."""
        if value is None or value == "":
            return ToolResult(call.id, ToolStatus.EMPTY, f"{self.name} returned nothing.")
        if isinstance(value, str) and not isinstance(value, Enum):
            return ToolResult(call.id, ToolStatus.OK, str(value))
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
        return ToolResult(call.id, ToolStatus.OK, text)

    def _failure(self, call: ToolCall, error: Exception) -> ToolResult:
        text = f"{self.name} failed: {one_line(error)}"[:_MOST_ERROR_CHARS]
        return ToolResult(call.id, ToolStatus.ERROR, text, {"raised": type(error).__name__})


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a `functools.partial` or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    is_code = inspect.isroutine(function)
    return function if is_code else type(function).__call__


def _plain(value: object) -> object:
    """A JSON form for the types that tool arguments can also have: models, dataclasses and enums."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"it returned {type(value).__name__}, which is neither text nor JSON")
