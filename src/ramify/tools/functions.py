"""Tools made from Python functions, and from classes of which each trajectory has its own object.

Type hints and a docstring tell the policy the arguments. A blocking function runs in a thread, a coroutine
function on the agent's event loop. An object is copied when its trajectory branches. A recipe names a user's own tool by
file and function; the file runs with all rights of the run: it is the user's code, not the model's.
"""

import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ramify.core.errors import ConfigError, ContentError, RamifyError
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec
from ramify.core.protocols import Tool, ToolSession
from ramify.files.user_code import load_function, one_line
from ramify.runtime.daemon_threads import DaemonThreads
from ramify.tools.configs import OwnToolConfig
from ramify.tools.own_objects import Constructor, OwnObject, read_constructor, read_method
from ramify.tools.signatures import Callee
from ramify.tools.stateless import StatelessSession


def _call_method(source: type, name: str) -> str:
    """Return the method that a call runs: `__call__`, or the method with the tool's name."""
    methods = [key for key in ("__call__", name) if any(key in vars(base) for base in source.__mro__)]
    if len(methods) != 1:
        have = "both" if methods else "neither"
        raise ConfigError(
            f"{name}: expected class {source.__name__} to have one of the methods __call__ and {name}, it has {have}"
        )
    return methods[0]


@dataclass(frozen=True, slots=True)
class ClassTool:
    """Implements `core.protocols.Tool` with a class; `method` names the method that calls run.

    `label` names the class in messages.
    """

    spec: ToolSpec
    method: str
    make: Constructor
    callee: Callee
    threads: DaemonThreads
    label: str

    async def open(self, problem: Problem) -> ToolSession:
        """Create the object of a root trajectory; raises as the constructor does."""
        instance = OwnObject(None, self.threads)
        await instance.create(partial(self.make, problem))
        return ObjectSession(self, instance)


@dataclass(slots=True)
class ObjectSession:
    """Implements `core.protocols.ToolSession` with the object of one trajectory."""

    tool: ClassTool
    instance: OwnObject

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call."""
        callee = self.tool.callee
        values = callee.read(call)
        if isinstance(values, ToolResult):
            return values
        return await self.instance.call(callee, call, getattr(self.instance.state, self.tool.method), values)

    async def fork(self) -> ToolSession:
        """Return a session with the copy that the object's `fork` returns.

        Raises:
            ContentError: `fork` failed, or returned no copy. Otherwise the branch would silently continue without the tool.
        """
        label = self.tool.label
        try:
            copied = await self.instance.do(self.instance.state.fork)
        except RamifyError:
            raise
        except (Exception, SystemExit) as error:
            raise ContentError(f"{label}: fork failed: {one_line(error)}") from error
        if (wrong := self.instance.copy_fault(copied)) is not None:
            raise ContentError(f"{label}: fork returned {wrong}, expected a copy of the object")
        return ObjectSession(self.tool, OwnObject(copied, self.tool.threads))

    async def close(self) -> None:
        """Call the object's `close`, if it has one; only the first time."""
        await self.instance.close()


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
    """Return a tool that calls a function, or a method of an object that belongs to one trajectory.

    A class is instantiated for each root trajectory; if its `__init__` has a parameter "problem", it gets the `Problem`.
    A call runs its `__call__`, or its method with the tool's name. `fork()` returns an independent copy for a branch;
    without it the agent does not branch. `close()`, if there is one, frees what the object holds.

    Args:
        source: The function or class.
        name: Name of the tool; by default the function's name, or the class's in snake case.
        args: Values for parameters of the function, which calls then do not supply, or for parameters of `__init__`.
        timeout_seconds: Deadline of one call, without its wait for a thread.
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
        return FunctionTool(spec(callee, forks=True), partial(source, **callee.bound), callee, threads)
    if hedge_seconds is not None:
        raise ConfigError(f"{name}: hedge_seconds: an object's call cannot be made twice. Remove it.")
    method = _call_method(source, name)
    callee = read_method(source, method, name)
    module = sys.modules.get(source.__module__)
    label = f"{getattr(module, '__file__', None) or source.__module__}: {source.__name__}"
    make = read_constructor(source, args or {}, f"{name}: {source.__name__}", label)
    forks = callable(getattr(source, "fork", None))
    return ClassTool(spec(callee, forks), method, make, callee, threads, label)


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """Implements `core.protocols.Tool` with a function. It keeps no state between calls."""

    spec: ToolSpec
    function: Callable[..., Any]
    callee: Callee
    threads: DaemonThreads

    async def open(self, problem: Problem) -> ToolSession:  # noqa: ARG002 - all problems start alike
        """Start a session."""
        return StatelessSession(self.run)

    async def run(self, call: ToolCall) -> ToolResult:
        """Run one call."""
        values = self.callee.read(call)
        if isinstance(values, ToolResult):
            return values
        if self.callee.is_async:
            return await self.callee.answer_async(call, self.function, values)
        action = partial(self.callee.answer, call, self.function, values)
        return await self.threads.result(self.threads.submit(action))


def _name(source: object) -> str:
    """Return the name of a function, or of a class in snake case."""
    while isinstance(source, partial):
        source = source.func
    if inspect.isroutine(source):
        return str(source.__name__)
    kind = source if isinstance(source, type) else type(source)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def load_tool(config: OwnToolConfig) -> tuple[Tool, str]:
    """Return the tool of a function or class in a Python file, and the SHA-256 of the file.

    Two tools from one file share its module. The folder of the file is not searched for other modules.

    Raises:
        ConfigError: The file cannot be read or run, or has no such tool; one line that begins with the path.
    """
    # max_calls and limit_reply are not for the tool itself: the set of tools counts the calls.
    others = ("path", "function", "max_calls", "limit_reply")
    settings = {key: value for key, value in config.values().items() if key not in others}
    path, function = config.path, config.function
    loaded = load_function(path, function)
    try:
        return tool_from(loaded.function, **settings), loaded.sha256
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
