"""The user's own reward functions, with the signature that TRL's trainers use.

def reward(completions, answer, **columns) -> list[float | None]
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError, DataError
from ramify.core.tree import Trajectory
from ramify.user_files import load_function, one_line

_OFFERED = ("prompts", "completions", "answer", "trajectories")
"""What each function can take besides the columns of the problems; "answer" is a list of golds per trajectory."""

_LARGEST = 1e9
"""Largest absolute value; its squares and means still fit float32."""


@dataclass(frozen=True, slots=True)
class FunctionPart:
    """A part of the reward (`rewards.parts`) that a function computes for a whole batch.

    The function gets the parameters that it names, each a list with one entry per trajectory: `completions` (text after
    the prompt, including tool results), `prompts` (the problem's messages as (role, text) pairs), `answer` (lists of
    golds), `trajectories` (as recorded), and the free columns of the problems. It also gets `args`. A function with
    `**columns` gets everything. A function that is not `async` runs in a thread.

    Attributes:
        function: Returns for each completion a number, or None if it does not apply.
        name: Name in reports and messages.
        args: Fixed values of parameters.

    Raises:
        ConfigError: `function` is not a function, or has no parameter for one of `args`.
    """

    function: Callable[..., Any]
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"reward {self.name}: expected a function, got {type(self.function).__name__}")
        parameters = inspect.signature(self.function).parameters
        if unknown := [key for key in self.args if key not in parameters and not _takes_all(parameters)]:
            raise ConfigError(f"reward {self.name}: args.{unknown[0]}: the function has no such parameter")

    async def values(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        """The values that the function returned, checked.

        Raises:
            DataError: The function raised, returned the wrong number of values, or a value that is not a number within
                1e9.
        """
        if not trajectories:
            return []
        given = self._arguments(trajectories)
        try:
            if inspect.iscoroutinefunction(self.function):
                found = await self.function(**given)
            else:
                found = await asyncio.to_thread(self.function, **given)
        except Exception as error:
            raise DataError(f"reward {self.name}: it raised {one_line(error)}") from error
        return self._checked(found, trajectories)

    def _arguments(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        columns = sorted({key for each in trajectories for key in each.problem.info})
        offered: dict[str, Any] = {
            **{key: [each.problem.info.get(key) for each in trajectories] for key in columns},
            "prompts": [[(m.role, m.text) for m in each.problem.messages] for each in trajectories],
            "completions": ["".join(node.text for node in each.nodes[1:]) for each in trajectories],
            "answer": [list(each.problem.answer) for each in trajectories],
            "trajectories": list(trajectories),
            **self.args,
        }
        parameters = inspect.signature(self.function).parameters
        if _takes_all(parameters):
            return offered
        for key, parameter in parameters.items():
            if key not in offered and parameter.default is inspect.Parameter.empty:
                have = ", ".join((*_OFFERED, *columns))
                raise DataError(f"reward {self.name}: nothing to give for parameter {key!r}; there is {have}")
        return {key: value for key, value in offered.items() if key in parameters}

    def _checked(self, found: object, trajectories: Sequence[Trajectory]) -> list[float | None]:
        if not isinstance(found, Sequence) and not hasattr(found, "__array__"):
            raise DataError(
                f"reward {self.name}: expected a list of {len(trajectories)} numbers, got {type(found).__name__}"
            )
        values = list(found)  # type: ignore[call-overload]
        if len(values) != len(trajectories):
            raise DataError(
                f"reward {self.name}: expected {len(trajectories)} values, one for each completion, got {len(values)}"
            )
        return [self._number(value, each) for value, each in zip(values, trajectories, strict=True)]

    def _number(self, value: object, trajectory: Trajectory) -> float | None:
        if value is None:
            return None
        try:
            number = float(value) if isinstance(value, Real) else math.nan
        except OverflowError:
            number = math.inf
        if not abs(number) <= _LARGEST:
            where = f"problem {trajectory.problem.id!r}, trajectory {trajectory.leaf.id!r}"
            shown = "a larger number" if number == math.inf else repr(value)
            raise DataError(
                f"reward {self.name}: {where}: expected a number from -1e9 to 1e9 or None, got {shown}"
            )
        return number


def load_reward(
    path: Path, function: str, args: Mapping[str, Any], *, name: str | None = None
) -> tuple[FunctionPart, str]:
    """A function in a Python file as a part, and the SHA-256 of the file.

    Raises:
        ConfigError: The file cannot be run or has no such function, or the function cannot take `args`.
    """
    loaded = load_function(path, function)
    try:
        return FunctionPart(loaded.function, name or function, args), loaded.sha256
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _takes_all(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
