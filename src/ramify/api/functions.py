"""Optional marks of functions: each checks the form where the function is defined, and returns it as it is."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ramify.core.errors import ConfigError
from ramify.files.user_code import check_signature, place_of

Own = TypeVar("Own", bound=Callable[..., Any])


def tool(function: Own) -> Own:
    """Check that a function or class can be a tool: type hints, and a docstring that describes each argument.

    Raises:
        ConfigError: A model could not call it; names the argument.
    """
    from ramify.tools.functions import tool_from

    try:
        tool_from(function)
    except ConfigError as error:
        raise ConfigError(f"{error}{place_of(function)}") from None
    return function


def reward(function: Own) -> Own:
    """Check that a function can be a part of a reward.

    Raises:
        ConfigError: It is none.
    """
    from ramify.rewards.parts import FunctionPart

    FunctionPart(function, getattr(function, "__name__", type(function).__name__))
    return function


def branching_rule(function: Own) -> Own:
    """Check that a function can be a branching rule: `f(candidate)`, a probability.

    Raises:
        ConfigError: It has other parameters.
    """
    return _checked(function, "branching rule", ("candidate",))


def advantage(function: Own) -> Own:
    """Check that a function can be an estimator: `f(rewards, tree)`, an advantage for each trajectory.

    Raises:
        ConfigError: It has other parameters.
    """
    return _checked(function, "advantage", ("rewards", "tree"))


def token_loss(function: Own) -> Own:
    """Check that a function can be a token loss: `f(ratio, sign)`, applied as -(S+ f(r, +1) + S- f(r, -1)).

    Raises:
        ConfigError: It has other parameters.
    """
    return _checked(function, "token loss", ("ratio", "sign"))


def rewriter(function: Own) -> Own:
    """Check that a function can be a rewriter: `f(trajectory)`, where the trajectory goes on, or None.

    Raises:
        ConfigError: It has other parameters.
    """
    return _checked(function, "rewriter", ("trajectory",))


def _checked(function: Own, kind: str, parameters: tuple[str, ...]) -> Own:
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.iscoroutinefunction(function) and kind != "rewriter":
        raise ConfigError(
            f"{kind} {name}{place_of(function)}: expected a plain function, got an async one. Remove async."
        )
    check_signature(function, f"{kind} {name}{place_of(function)}", name, parameters, {})
    return function
