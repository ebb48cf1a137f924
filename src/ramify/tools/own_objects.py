"""Objects of the user's own that belong to one trajectory each: tools with a state, and environments.

Classes for TRL draw from the global generators of `random` and `numpy.random`. Seeding these around a method would need
a lock, which a method that hangs never releases, and another trajectory's method could still draw in between. So the
module functions ask which session runs: in a method of a session they draw from its own generators (`SessionRandom`),
and anywhere else from the global ones, as before.
"""

import asyncio
import copy
import functools
import inspect
import random
import threading
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from ramify.core.errors import ConfigError, ContentError, RamifyError
from ramify.core.messages import Problem, ToolCall, ToolResult
from ramify.files.user_code import one_line
from ramify.runtime.daemon_threads import DaemonThreads, Job
from ramify.tools.signatures import Callee, bind, read_docstring, read_parameters

Value = TypeVar("Value")

_PROBLEM = "problem"


def read_method(source: type, method: str, name: str) -> Callee:
    """Read the signature and docstring of a method that calls run; without a docstring, the class's describes it.

    Raises:
        ConfigError: It cannot be called by a model; the message begins with `name`.
    """
    static = inspect.getattr_static(source, method)
    # Any object will do as `self`, since the method is only inspected.
    function = types.MethodType(static, source) if inspect.isfunction(static) else getattr(source, method)
    about = inspect.getdoc(source) or ""
    try:
        return Callee.of(function, name, {}, read_docstring(about).description)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Constructor:
    """Creates the object of a trajectory; `__init__` gets the problem if it has a parameter for it.

    Attributes:
        source: The class.
        values: Values for parameters of `__init__`.
        reads_problem: Whether `__init__` gets the problem.
        label: Names the class in messages.
        has_succeeded: Set once an object was created.
    """

    source: type
    values: Mapping[str, Any]
    reads_problem: bool
    label: str
    has_succeeded: threading.Event = field(default_factory=threading.Event)

    def __call__(self, problem: Problem) -> Any:  # noqa: ANN401 - an object of the user's own
        """Return a new object.

        Raises:
            ConfigError: `__init__` failed, does not depend on the problem, and has never succeeded.
            ContentError: `__init__` failed on this problem, and has never succeeded.
        """
        own = {_PROBLEM: problem} if self.reads_problem else {}
        try:
            # A copy, so that a trajectory that changes a list from the recipe does not affect other trajectories.
            instance = self.source(**own, **copy.deepcopy(dict(self.values)))
        except RamifyError:
            raise
        except (Exception, SystemExit) as error:
            if self.has_succeeded.is_set():
                raise
            reason = f"{self.label}: no object could be created: {one_line(error)}. Fix __init__."
            raise (ContentError if self.reads_problem else ConfigError)(reason) from error
        self.has_succeeded.set()
        return instance


def read_constructor(source: type, args: Mapping[str, Any], name: str, label: str) -> Constructor:
    """Return the constructor of a class's objects; `label` names the class in its errors.

    Raises:
        ConfigError: A parameter of `__init__` has no value, or a value is wrong; the message begins with `name`.
    """
    method = f"{name}.__init__"
    parameters = read_parameters(source, method)
    reads_problem = parameters.pop(_PROBLEM, None) is not None
    bound = bind(parameters, args, method)
    for key, parameter in parameters.items():
        if key not in bound and parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{method}: args: expected a value for {key!r}")
    return Constructor(source, bound, reads_problem, label)


@dataclass(frozen=True, slots=True)
class SessionRandom:
    """The generators of one session."""

    python: random.Random
    numpy: np.random.RandomState

    @classmethod
    def of(cls, seed: int) -> "SessionRandom":
        """Return generators that begin at `seed`."""
        return cls(random.Random(seed), np.random.RandomState(seed % 2**32))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the module functions draw from these generators, in this context and in threads that inherit it."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: ContextVar[SessionRandom | None] = ContextVar("session random", default=None)
_INSTALLING = threading.Lock()
_ALIASES = {"ranf": "random_sample", "sample": "random_sample"}
"""Functions of `numpy.random` under other names than the methods."""


def install_session_random() -> None:
    """Let the functions of both modules ask for the active session; the second call does nothing.

    Functions that a module imported by name before this call still draw from the global generators.
    """
    with _INSTALLING:
        if getattr(random.random, "asks_session", False):
            return
        for name in dir(random.Random):
            if name in random.__all__:
                _replace(random, name, lambda own: own.python, name)
        for name in np.random.__all__:
            method = _ALIASES.get(name, name)
            if hasattr(np.random.RandomState, method):
                _replace(np.random, name, lambda own: own.numpy, method)


def _replace(module: ModuleType, name: str, generator: Callable[[SessionRandom], Any], method: str) -> None:
    """Replace a function of a module by one that draws from the active session, if there is one."""
    original = getattr(module, name)

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the original takes and returns
        session = _ACTIVE.get()
        function = original if session is None else getattr(generator(session), method)
        return function(*args, **kwargs)

    draw.asks_session = True  # type: ignore[attr-defined]
    setattr(module, name, draw)


@dataclass(slots=True)
class OwnObject:
    """The object of one trajectory. Its methods run one at a time, in the order of the requests.

    With `random`, draws from the global generators are drawn from it instead.

    A blocking method runs in a thread. After its deadline it may still run there; the next request waits until it ends.
    """

    state: Any
    threads: DaemonThreads
    random: SessionRandom | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _late: Job[Any] | None = None
    _is_closed: bool = False

    async def create(self, make: Callable[[], Any]) -> None:
        """Make the object; raises as `make` does. One that is there only after the deadline is closed."""

        def put() -> None:
            self.state = make()

        try:
            await self._run(put)
        except BaseException:
            await self.give_up()
            raise

    async def give_up(self) -> None:
        """Close an object that no session will close; whatever that raises is second to what is wrong already."""
        with suppress(Exception):
            await self.close()

    async def call(
        self, callee: Callee, call: ToolCall, method: Callable[..., Any], values: Mapping[str, Any]
    ) -> ToolResult:
        """Run a call of one of the object's methods; only a RamifyError is raised."""
        if callee.is_async:
            return await self._await(partial(callee.answer_async, call, method, values))
        return await self._run(partial(callee.answer, call, method, values))

    async def do(self, method: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the method returns
        """Call a method, a coroutine function or not; raises what it raises."""
        code = method.func if isinstance(method, partial) else method
        return await (self._await if inspect.iscoroutinefunction(code) else self._run)(method)

    def copy_fault(self, copied: object) -> str | None:
        """Describe the result of `fork`; None if it is a copy of the object."""
        if copied is self.state:
            return "the object itself"
        return None if isinstance(copied, type(self.state)) else type(copied).__name__

    async def close(self) -> None:
        """Call the object's `close`, if it has one; only the first time."""
        if not self._is_closed:
            self._is_closed = True
            async with self._lock:
                await self._wait_for_late_call()
            if callable(getattr(self.state, "close", None)):
                await self.do(self.state.close)

    async def _await(self, action: Callable[[], Awaitable[Value]]) -> Value:
        async with self._lock:
            await self._wait_for_late_call()
            with self._generators():
                return await action()

    async def _run(self, action: Callable[[], Value]) -> Value:
        async with self._lock:
            await self._wait_for_late_call()
            with self._generators():
                job = self.threads.submit(action)
            try:
                return await self.threads.result(job)
            except asyncio.CancelledError:
                self._late = job
                raise

    def _generators(self) -> AbstractContextManager[None]:
        return nullcontext() if self.random is None else self.random.active()

    async def _wait_for_late_call(self) -> None:
        """Wait for the thread of a call that was cancelled."""
        if self._late is not None and not self._late.future.done():
            ended = asyncio.wrap_future(self._late.future)
            try:
                await asyncio.wait((ended,))
            finally:
                # Mark the outcome as retrieved: no task waits for it any more.
                ended.cancel() or ended.cancelled() or ended.exception()
