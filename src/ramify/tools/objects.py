"""A class as a tool: each trajectory has its own object, which is copied when the trajectory branches."""

import asyncio
import copy
import inspect
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ramify.core.errors import ConfigError, RamifyError
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec
from ramify.core.protocols import ToolSession
from ramify.tools.callee import Callee
from ramify.tools.daemon_threads import DaemonThreads, Job
from ramify.tools.docstrings import read_docstring
from ramify.tools.signatures import bind, read_parameters
from ramify.user_files import one_line

Value = TypeVar("Value")

_PROBLEM = "problem"


def call_method(source: type, name: str) -> str:
    """The method that a call runs: `__call__`, or the method with the tool's name.

    Raises:
        ConfigError: The class has neither, or both.
    """
    found = [key for key in ("__call__", name) if any(key in vars(base) for base in source.__mro__)]
    if len(found) != 1:
        have = "both" if found else "neither"
        raise ConfigError(
            f"{name}: expected class {source.__name__} to have one of the methods __call__ and {name}, it has {have}"
        )
    return found[0]


def read_method(source: type, method: str, name: str) -> Callee:
    """Read the signature and docstring of the method that calls run.

    Raises:
        ConfigError: The method cannot be a tool.
    """
    static = inspect.getattr_static(source, method)
    # Any object will do as `self`, since the method is only inspected.
    function = types.MethodType(static, source) if inspect.isfunction(static) else getattr(source, method)
    about = inspect.getdoc(source) or ""
    try:
        return Callee.of(function, name, {}, read_docstring(about).description)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def read_constructor(source: type, args: Mapping[str, Any], name: str) -> Callable[[Problem], Any]:
    """A function that creates the object of a trajectory.

    Raises:
        ConfigError: `args` does not fit `__init__`.
    """
    place = f"{name}: {source.__name__}.__init__"
    parameters = read_parameters(source, place)
    wants_problem = parameters.pop(_PROBLEM, None) is not None
    bound = bind(parameters, args, place)
    for key, parameter in parameters.items():
        if key not in bound and parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{place}: args: expected a value for {key!r}")

    def make(problem: Problem) -> object:
        given = {_PROBLEM: problem} if wants_problem else {}
        # A copy, so that a trajectory that changes a list from the recipe does not affect other trajectories.
        return source(**given, **copy.deepcopy(bound))

    return make


def place_of(source: type) -> str:
    """File and name of a class, for messages."""
    module = sys.modules.get(source.__module__)
    return f"{getattr(module, '__file__', None) or source.__module__}: {source.__name__}"


@dataclass(frozen=True, slots=True)
class ClassTool:
    """Implements `core.protocols.Tool` with a class; `method` names the method that calls run.

    `place` names the class in messages; `has_made` is set once an object was created.
    """

    spec: ToolSpec
    method: str
    make: Callable[[Problem], Any]
    callee: Callee
    threads: DaemonThreads
    place: str
    has_made: threading.Event = field(default_factory=threading.Event)

    async def open(self, problem: Problem) -> ToolSession:
        """Create the object of a root trajectory.

        Raises:
            ConfigError: `__init__` failed and has never succeeded; the run would only train on error messages.
        """
        try:
            state = await self.threads.result(self.threads.submit(partial(self.make, problem)))
        except RamifyError:
            raise
        except (Exception, SystemExit) as error:
            if self.has_made.is_set():
                raise
            told = f"{self.place}: no object could be made: {one_line(error)}; mend __init__"
            raise ConfigError(told) from error
        self.has_made.set()
        return ObjectSession(self, state)


@dataclass(slots=True)
class ObjectSession:
    """The object of one trajectory. Its methods run one at a time, in the order of the requests.

    A call that timed out may still run in its thread; the next request waits until it has ended.
    """

    tool: ClassTool
    state: Any
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _late: Job[Any] | None = None
    _is_closed: bool = False

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call."""
        callee = self.tool.callee
        values = callee.read(call)
        if isinstance(values, ToolResult):
            return values
        method = getattr(self.state, self.tool.method)
        if callee.is_async:
            return await self._await(partial(callee.answer_async, call, method, values))
        return await self._run(partial(callee.answer, call, method, values))

    async def fork(self) -> ToolSession:
        """A session with the copy that the object's `fork` returns.

        Raises:
            ConfigError: `fork` failed, or returned no copy. Otherwise branches would silently go on without the tool.
        """
        place = self.tool.place
        try:
            copied = await self._do(self.state.fork)
        except RamifyError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{place}: fork failed: {one_line(error)}; mend it or leave it out") from error
        if copied is self.state or not isinstance(copied, type(self.state)):
            given = "the object itself" if copied is self.state else type(copied).__name__
            raise ConfigError(f"{place}: fork gave {given}, expected a copy of the object")
        return ObjectSession(self.tool, copied)

    async def close(self) -> None:
        """Call the object's `close`, if it has one; only the first time."""
        if not self._is_closed:
            self._is_closed = True
            if callable(getattr(self.state, "close", None)):
                await self._do(self.state.close)

    async def _do(self, method: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the method gives
        if inspect.iscoroutinefunction(method):
            return await self._await(method)
        return await self._run(method)

    async def _await(self, action: Callable[[], Awaitable[Value]]) -> Value:
        async with self._lock:
            await self._settled()
            return await action()

    async def _run(self, action: Callable[[], Value]) -> Value:
        async with self._lock:
            await self._settled()
            job = self.tool.threads.submit(action)
            try:
                return await self.tool.threads.result(job)
            except asyncio.CancelledError:
                self._late = job
                raise

    async def _settled(self) -> None:
        """Wait for the thread of a call that was cancelled."""
        if self._late is not None and not self._late.future.done():
            ended = asyncio.wrap_future(self._late.future)
            try:
                await asyncio.wait((ended,))
            finally:
                # Mark the outcome as retrieved: nobody waits for it any more.
                ended.cancel() or ended.cancelled() or ended.exception()
