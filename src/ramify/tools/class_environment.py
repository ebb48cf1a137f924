"""Environments made from a class of the user's own; classes for TRL's `environment_factory` run unchanged.

    class Shop:
        def reset(self, stock: int, **row) -> str | None: ...     # begins a trajectory; the text ends the prompt
        def buy(self, item: str, count: int) -> str: ...          # each public method is a tool
        def step(self, text: str) -> str | None: ...              # the user's reply to words or an answer
        def fork(self) -> "Shop": ...                             # a copy for a branch
        def get_reward(self) -> float: ...                        # what the whole trajectory is worth
        def close(self) -> None: ...
        done = False                                              # true: the environment ends the trajectory
        reward = 0.0                                              # paid so far; what a turn adds is paid for that turn

Only `reset` must be there. Without `fork`, a branch gets a new object, in which the calls of its path are made again.
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any, Literal

from ramify.core.errors import ConfigError, ContentError
from ramify.core.messages import (
    Final,
    Message,
    Observation,
    ParsedTurn,
    Problem,
    Say,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from ramify.core.protocols import EnvironmentSession
from ramify.core.tree import Trajectory
from ramify.files.user_code import load_function
from ramify.runtime.daemon_threads import DaemonThreads
from ramify.tools.configs import OwnEnvironmentConfig
from ramify.tools.own_objects import (
    Constructor,
    OwnObject,
    SessionRandom,
    install_session_random,
    read_constructor,
    read_method,
)
from ramify.tools.signatures import Callee

_OURS = frozenset({"reset", "step", "fork", "get_reward", "close"})


@dataclass(frozen=True, slots=True)
class ClassEnvironment:
    """Implements `core.protocols.Environment` with a class.

    Attributes:
        tools: Descriptions of the public methods.
        seconds: Deadline of each method.
        branches: By `fork`, or by replay.
        max_observations: Most replies of `step` on one trajectory.
        scores: Whether there is a `get_reward`.
        make: Creates the object of a trajectory.
        callees: The public methods.
        reset_parameters: The parameters that `reset` names.
        resets_with_any: `reset` takes any column of the row.
        threads: Where blocking methods run.
        label: Names the class in messages.
        opens: Whether a text from `reset` ends the prompt.
    """

    tools: Mapping[str, ToolSpec]
    seconds: float
    branches: Literal["fork", "replay"]
    max_observations: int
    scores: bool
    make: Constructor
    callees: Mapping[str, Callee]
    reset_parameters: frozenset[str]
    resets_with_any: bool
    threads: DaemonThreads
    label: str
    opens: bool = field(default=True, init=False)

    async def open(self, problem: Problem, seed: int) -> EnvironmentSession:
        """Create the object of a root trajectory, and reset it with the columns of the problem's row.

        Raises:
            ConfigError: No object could be created.
            ContentError: `reset` needs a column that the problem lacks.
        """
        row = {**problem.info, **_row(problem), "seed": seed}
        keys = row.keys() if self.resets_with_any else self.reset_parameters & row.keys()
        # A copy, so that a trajectory that changes a list of the row does not affect other trajectories.
        arguments = copy.deepcopy({key: row[key] for key in keys})
        instance = OwnObject(None, self.threads, SessionRandom.of(seed))
        await instance.create(partial(self.make, problem))
        try:
            opening = await self._reset(instance, problem, arguments)
            # With `get_reward` an attribute `reward` is the class's own, and may be anything.
            return ClassSession(self, instance, opening, 0.0 if self.scores else _number(instance.state))
        except BaseException:
            await instance.give_up()
            raise

    async def _reset(self, instance: OwnObject, problem: Problem, arguments: Mapping[str, Any]) -> str:
        """Reset a new object; returns the opening."""
        reset = instance.state.reset
        try:
            inspect.signature(reset).bind(**arguments)
        except TypeError as error:
            has = ", ".join(sorted({*problem.info, *_row(problem), "seed"}))
            raise ContentError(f"{self.label}.reset: {error}; problem {problem.id!r} has {has}") from None
        opening = await instance.do(partial(reset, **arguments))
        if opening is not None and not isinstance(opening, str):
            raise TypeError(f"reset returned {type(opening).__name__}, expected a text or None")
        return opening or ""


def _row(problem: Problem) -> dict[str, Any]:
    """Return the columns that every row has, as TRL passes them."""
    answer = problem.answer[0] if len(problem.answer) == 1 else list(problem.answer)
    return {
        "prompt": [{"role": message.role, "content": message.text} for message in problem.messages],
        "answer": answer,
        "id": problem.id,
    }


@dataclass(slots=True)
class ClassSession:
    """The object of one trajectory; `paid` is what was paid of its `reward` so far."""

    environment: ClassEnvironment
    instance: OwnObject
    opening: str
    paid: float = 0.0

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The public methods."""
        return self.environment.tools

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call."""
        callee = self.environment.callees[call.name]
        values = callee.read(call)
        if isinstance(values, ToolResult):
            return values
        result = await self.instance.call(callee, call, getattr(self.instance.state, call.name), values)
        return replace(result, reward=self._turn_reward(), ends=self._is_done)

    async def step(self, turn: ParsedTurn) -> Observation:
        """Pass a text or an answer to the object's `step` and return its reply; a malformed turn gets none."""
        if not isinstance(turn, Say | Final):
            return Observation()
        text = turn.text if isinstance(turn, Say) else turn.answer
        reply = await self.instance.do(partial(self.instance.state.step, text))
        if reply is not None and not isinstance(reply, str):
            raise TypeError(f"step returned {type(reply).__name__}, expected a text or None")
        messages = (Message.of("user", reply),) if reply else ()
        return Observation(messages, self._turn_reward(), self._is_done)

    async def fork(self, seed: int) -> EnvironmentSession:
        """Return a session with the copy that the object's `fork` returns, and with generators that begin at `seed`.

        Raises:
            TypeError: It returns no copy.
        """
        fork = self.instance.state.fork
        wants_seed = "seed" in inspect.signature(fork).parameters
        copied = await self.instance.do(partial(fork, seed=seed) if wants_seed else fork)
        if (wrong := self.instance.copy_fault(copied)) is not None:
            raise TypeError(f"fork returned {wrong}, expected a copy of the object")
        return replace(self, instance=OwnObject(copied, self.environment.threads, SessionRandom.of(seed)))

    async def score(self, trajectory: Trajectory) -> float:  # noqa: ARG002 - the object has seen it all
        """Return the value of `get_reward`.

        Raises:
            TypeError: It is not a finite number.
        """
        return _finite(await self.instance.do(self.instance.state.get_reward), "get_reward returned")

    async def close(self) -> None:
        """Call the object's `close`, if it has one; only the first time."""
        await self.instance.close()

    @property
    def _is_done(self) -> bool:
        done = getattr(self.instance.state, "done", False)
        # A method of this name is a tool, as one named `reward` is.
        return not callable(done) and bool(done)

    def _turn_reward(self) -> float:
        """Return what the object's `reward` has more than was paid."""
        if self.environment.scores:
            return 0.0
        pay = _number(self.instance.state) - self.paid
        # The sum of what was paid, so that the next turn makes up for rounding: else a reward of 1 may end below 1.
        self.paid += pay
        return pay


def _number(state: object) -> float:
    """Return the object's `reward`; 0 if it has none.

    Raises:
        TypeError: It is not a finite number.
    """
    reward = getattr(state, "reward", 0.0)
    if callable(reward) or reward is None:
        return 0.0
    return _finite(reward, "its `reward` is")


def _finite(value: object, what: str) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise TypeError(f"{what} {value!r:.60}, expected a finite number")
    return float(value)


def load_environment(config: OwnEnvironmentConfig) -> tuple[ClassEnvironment, str]:
    """Return the environment of a class in a Python file, and the SHA-256 of the file.

    Raises:
        ConfigError: The file cannot be run, or has no such class; the message begins with its path.
    """
    # Before the file imports functions of these modules by name.
    install_session_random()
    loaded = load_function(config.path, config.function)
    settings = config.values()
    for key in ("type", "path", "function"):
        settings.pop(key, None)
    try:
        return environment_from(loaded.function, **settings), loaded.sha256
    except ConfigError as error:
        raise ConfigError(f"{config.path}: {error}") from None


def environment_from(
    source: Callable[..., Any],
    *,
    args: Mapping[str, Any] | None = None,
    max_steps: int = 10,
    in_prompt: bool = True,
    timeout_seconds: float = 60.0,
    max_threads: int = 32,
) -> ClassEnvironment:
    """Return an environment in which each trajectory has its own object of a class (see the module).

    `reset` gets those columns of the problem's row that it names, or all with `**row`; also `prompt`, `answer`, `id` and
    `seed`, which is the same for all trajectories of a tree.

    Args:
        source: The class.
        args: Values for parameters of `__init__`.
        max_steps: Most replies of `step` on one trajectory.
        in_prompt: Whether prompts describe the methods; otherwise the problems' own messages do.
        timeout_seconds: Deadline of each method, without its wait for a thread.
        max_threads: Most blocking methods that run concurrently.

    Raises:
        ConfigError: The class has no `reset`, no tool and no `step`, or a method that no model can call.
    """
    install_session_random()
    if not inspect.isclass(source):
        raise ConfigError(f"environment: expected a class, got {type(source).__name__}")
    label = source.__name__
    if not callable(getattr(source, "reset", None)):
        raise ConfigError(f"{label}: expected a method reset, which begins a trajectory")
    make = read_constructor(source, args or {}, label, label)
    names = [
        name
        for name, _ in inspect.getmembers(source, inspect.isfunction)
        if not name.startswith("_") and name not in _OURS
    ]
    callees = {name: read_method(source, name, name) for name in names}
    has_step = callable(getattr(source, "step", None))
    if not callees and not has_step:
        raise ConfigError(f"{label}: expected a public method, which is a tool, or a method step")
    specs = {
        name: ToolSpec(
            name, callee.description, callee.arguments.schema, True, timeout_seconds, in_prompt=in_prompt
        )
        for name, callee in callees.items()
    }
    reset: Callable[..., Any] = inspect.getattr_static(source, "reset")
    parameters = list(inspect.signature(reset).parameters.values())[1:]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    return ClassEnvironment(
        tools=specs,
        seconds=timeout_seconds,
        branches="fork" if callable(getattr(source, "fork", None)) else "replay",
        max_observations=max_steps if has_step else 0,
        scores=callable(getattr(source, "get_reward", None)),
        make=make,
        callees=callees,
        reset_parameters=frozenset(each.name for each in parameters if each.kind is not each.VAR_KEYWORD),
        resets_with_any=takes_any,
        threads=DaemonThreads(f"environment {label}", max_threads),
        label=label,
    )
