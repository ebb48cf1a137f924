"""Tools made from Python functions, and from classes that keep state per trajectory.

Type hints and a Google-style docstring tell the policy the arguments. A blocking function runs in a thread, a coroutine
function on the agent's event loop.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ramify.core.errors import ConfigError
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec
from ramify.core.protocols import Tool, ToolSession
from ramify.tools.callee import Callee
from ramify.tools.daemon_threads import DaemonThreads
from ramify.tools.objects import ClassTool, call_method, place_of, read_constructor, read_method


def tool_from(
    source: Callable[..., Any],
    *,
    name: str | None = None,
    args: Mapping[str, Any] | None = None,
    timeout_seconds: float = 60.0,
    hedge_seconds: float | None = None,
    in_prompt: bool = True,
    max_threads: int = 32,
) -> Tool:
    """A tool that calls a function, or a method of an object that belongs to one trajectory.

    A class is instantiated for each root trajectory; if its `__init__` has a parameter "problem", it gets the `Problem`.
    A call runs its `__call__`, or its method with the tool's name. `fork()` returns an independent copy for a branch;
    without it the agent does not branch. `close()`, if there is one, frees what the object holds.

    Args:
        source: The function or class.
        name: Name of the tool; by default the function's name, or the class's in snake case.
        args: Values for parameters of the function, which calls then do not supply, or for parameters of `__init__`.
        timeout_seconds: Deadline of one call, including its wait for a thread.
        hedge_seconds: After this time a slow call is made a second time. Only for functions that may run twice.
        in_prompt: Whether the prompt describes the tool; otherwise the problem's own messages do.
        max_threads: Most concurrent calls of a blocking function.

    Raises:
        ConfigError: The source cannot be a tool; the message names it and the parameter.
    """
    name = name or _name(source)
    for key, seconds in (("timeout_seconds", timeout_seconds), ("hedge_seconds", hedge_seconds)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ConfigError(f"{name}: {key}: expected a finite number above 0, got {seconds}")
    if max_threads < 1:
        raise ConfigError(f"{name}: max_threads: expected at least 1, got {max_threads}")
    threads = DaemonThreads(f"tool {name}", max_threads)

    def spec(callee: Callee, forks: bool) -> ToolSpec:
        schema = callee.arguments.schema
        return ToolSpec(name, callee.description, schema, forks, timeout_seconds, hedge_seconds, in_prompt)

    if not inspect.isclass(source):
        if not callable(source):
            raise ConfigError(f"{name}: expected a function or a class, got {type(source).__name__}")
        callee = Callee.of(source, name, args or {})
        return FunctionTool(
            spec(callee, forks=True), functools.partial(source, **callee.bound), callee, threads
        )
    if hedge_seconds is not None:
        raise ConfigError(f"{name}: hedge_seconds: an object's call cannot be made twice; leave it out")
    method = call_method(source, name)
    callee = read_method(source, method, name)
    make = read_constructor(source, args or {}, name)
    forks = callable(getattr(source, "fork", None))
    return ClassTool(spec(callee, forks), method, make, callee, threads, place_of(source))


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """Implements `core.protocols.Tool` with a function. It keeps no state between calls, so it is its own session."""

    spec: ToolSpec
    function: Callable[..., Any]
    callee: Callee
    threads: DaemonThreads

    async def open(self, problem: Problem) -> ToolSession:  # noqa: ARG002 - all problems start alike
        """Itself."""
        return self

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call."""
        values = self.callee.read(call)
        if isinstance(values, ToolResult):
            return values
        if self.callee.is_async:
            return await self.callee.answer_async(call, self.function, values)
        action = functools.partial(self.callee.answer, call, self.function, values)
        return await self.threads.result(self.threads.submit(action))

    async def fork(self) -> ToolSession:
        """Itself."""
        return self

    async def close(self) -> None:
        """Nothing to free."""


def _name(source: object) -> str:
    """The name of a function, or of a class in snake case."""
    while isinstance(source, functools.partial):
        source = source.func
    if inspect.isroutine(source):
        return str(source.__name__)
    kind = source if isinstance(source, type) else type(source)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
