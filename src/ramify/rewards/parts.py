"""A reward as a sum of weighted parts: a base reward, a judge's verdict, the user's own functions.

The user's functions have the signature that TRL's trainers use, or verl's:

def reward(completions, answer, **columns) -> list[float | None]
def compute_score(data_source, solution_str, ground_truth, extra_info) -> float | dict

or are called for one answer at a time:

def right(final_answer, answer) -> float | None
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Protocol, TypeAlias

from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Problem
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward
from ramify.core.tree import Trajectory
from ramify.files.user_code import load_function, one_line, place_of
from ramify.rewards.configs import OwnPartConfig
from ramify.rewards.extract import answer_of, response_of
from ramify.runtime.daemon_threads import DaemonThreads

JudgeScore: TypeAlias = Callable[[Problem, str], Awaitable[float | None]]
"""The verdict on an answer ("" if there was none), in [0, 1]; None if there is no verdict."""

_ONE = frozenset({"solution_str", "ground_truth"})
"""Parameters of verl's `compute_score`."""
_SINGLE = frozenset({"completion", "final_answer", "trajectory"})
"""Parameters of a function that is called for one answer at a time."""
_BATCH = frozenset({"completions", "prompts", "trajectories"})
"""Parameters of one that is called for all of a problem's answers."""
_ANY_COLUMN = frozenset({"extra_info", "trajectory", "trajectories"})
"""Parameters in which all columns come."""

_LARGEST = 1e9
"""Largest absolute value; its squares and means still fit float32."""

_MOST_THREADS = 16
"""In which one function runs at the same time."""

_NO_REWARD = Reward(0.0, {})
"""The sum to which parts are added without a base reward."""


class RewardPart(Protocol):
    """A named number for each trajectory."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    @property
    def always_applies(self) -> bool:
        """True if None always means that there is no verdict.

        Otherwise None for all trajectories of a problem means that the part does not apply to the problem.
        """
        ...

    async def values(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        """Return one value for each trajectory, in order; None: no verdict, or the part does not apply."""
        ...


@dataclass(frozen=True, slots=True)
class WeightedPart:
    """A part and its weight; a part with weight 0 is only reported."""

    part: RewardPart
    weight: float = 1.0

    def lacks_verdict(
        self, trajectories: Sequence[Trajectory], values: Sequence[float | None]
    ) -> Sequence[bool]:
        """Return True for each trajectory that lacks a value which its reward needs."""
        pairs = list(zip(trajectories, values, strict=True))
        concerned = {
            trajectory.problem.id
            for trajectory, value in pairs
            if self.part.always_applies or value is not None
        }
        return [
            self.weight != 0 and value is None and trajectory.problem.id in concerned
            for trajectory, value in pairs
        ]


@dataclass(frozen=True, slots=True)
class PartsReward:
    """The value of `base` plus weight * value of each part that applies. Its parts: those of `base`, and each by its name.

    A trajectory for which a part with a weight has no verdict does not count (`Reward.counts`): without that part its value
    would be the same as with a wrong verdict.

    Attributes:
        base: The reward to which the parts are added; None: only the parts count.
        parts: The parts; each has a different name.

    Raises:
        ConfigError: Two parts have the same name.
    """

    base: RewardFn | None
    parts: Sequence[WeightedPart]

    def __post_init__(self) -> None:
        names = [each.part.name for each in self.parts]
        if len(set(names)) < len(names):
            raise ConfigError(f"reward: two parts share a name: {', '.join(sorted(names))}. Rename one")

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Return one reward for each trajectory, in order.

        Raises:
            DataError: No part applies to a trajectory, or a part has the same name as a part of `base`.
        """
        base = [_NO_REWARD] * len(trajectories) if self.base is None else await self.base.score(trajectories)
        columns = [await each.part.values(trajectories) for each in self.parts]
        lacking = [each.lacks_verdict(trajectories, c) for each, c in zip(self.parts, columns, strict=True)]
        return tuple(
            self._sum(trajectory, base[i], [c[i] for c in columns], any(lacks[i] for lacks in lacking))
            for i, trajectory in enumerate(trajectories)
        )

    def _sum(
        self, trajectory: Trajectory, base: Reward, values: Sequence[float | None], lacks_verdict: bool
    ) -> Reward:
        applied = [(each, value) for each, value in zip(self.parts, values, strict=True) if value is not None]
        if self.base is None and not applied and not lacks_verdict:
            raise DataError(
                f"problem {trajectory.problem.id!r}: no part of the reward applies (all returned None); expected a number"
            )
        own = {each.part.name: value for each, value in applied}
        if shared := own.keys() & base.parts.keys():
            raise DataError(
                f"reward: {min(shared)!r} is also the name of a built-in part. Choose another name"
            )
        return replace(
            base,
            value=sum((each.weight * value for each, value in applied), base.value),
            parts={**base.parts, **own},
            counts=base.counts and not lacks_verdict,
        )


@dataclass(frozen=True, slots=True)
class JudgePart:
    """A judge's verdict on the answer of each trajectory."""

    judge: JudgeScore
    name: str = "judge"
    always_applies = True

    async def values(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        """Return the verdicts; None where the judge gave none."""
        verdicts = (self.judge(each.problem, answer_of(each)) for each in trajectories)
        return await asyncio.gather(*verdicts)


@dataclass(frozen=True, slots=True)
class FunctionPart:
    """A part of the reward (`rewards.parts`) that a function computes for a whole batch, or trajectory by trajectory.

    The function gets the parameters that it names, each a list with one entry per trajectory: `completions` (text after
    the prompt, including tool results), `prompts` (the problem's messages as (role, text) pairs), `answer` (lists of
    golds), `trajectories` (as recorded), and the free columns of the problems. It also gets `args`. A function with
    `**columns` gets everything. A function that is not `async` runs in a thread, which is abandoned when the run stops before it
    answers.

    A function with the parameters `solution_str` and `ground_truth` is verl's: it is called for each trajectory with the
    text after the prompt, the gold (a list where there are several), `data_source`, and as `extra_info` the columns of the
    problem. Of a dict that it returns, "score" counts.

    So is a function with one of the parameters `completion`, `final_answer` and `trajectory`. It gets the text after the prompt, the
    final answer, the record, `prompt`, `answer` (a list of golds) and the columns of the problem, as far as it names them.

    Attributes:
        function: Returns for each completion a number, or None: for all completions of a problem it does not apply to the
            problem, for a few of them it has no verdict on these.
        name: Name in reports and messages.
        args: Fixed values of parameters.

    Raises:
        ConfigError: `function` is not a function, or has no parameter for one of `args`.
    """

    function: Callable[..., Any]
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    _threads: DaemonThreads = field(init=False, repr=False, compare=False)
    # A function may be for problems of one kind, as in TRL.
    always_applies = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "_threads", DaemonThreads(f"reward {self.name}", _MOST_THREADS))
        if not callable(self.function):
            raise ConfigError(f"reward {self.name}: expected a function, got {type(self.function).__name__}")
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise ConfigError(f"reward {self.name}: it yields. Expected a function that returns its values")
        try:
            parameters = self._parameters
        except ValueError:
            raise ConfigError(
                f"reward {self.name}: its parameters cannot be read. Call it in a function of your own"
            ) from None
        if unknown := [key for key in self.args if key not in parameters and not _takes_all(parameters)]:
            raise ConfigError(f"reward {self.name}: args.{unknown[0]}: the function has no such parameter")

    @property
    def columns(self) -> frozenset[str]:
        """The parameters, which may name columns of the data."""
        return frozenset(self._parameters)

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        """Those that can be given by name, so not `*args`."""
        parameters = inspect.signature(self.function).parameters
        return {key: each for key, each in parameters.items() if each.kind is not each.VAR_POSITIONAL}

    @property
    def reads_any(self) -> bool:
        """True if the function can read any column."""
        return bool(self.columns & _ANY_COLUMN) or _takes_all(self._parameters)

    def check_columns(self, columns: Iterable[str]) -> None:
        """Check that problems with these columns have all that the function needs.

        Raises:
            DataError: It needs another parameter; lists those that there are.
        """
        names = self._parameters.keys()
        if names >= _ONE:
            offered: Iterable[str] = (*_ONE, "data_source", "extra_info")
        elif names & _SINGLE and not names & _BATCH:
            offered = (*columns, *_SINGLE, "prompt", "answer")
        else:
            offered = (*columns, *_BATCH, "answer")
        self._taken(dict.fromkeys((*offered, *self.args)))

    async def values(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        """Return the values that the function returned, checked.

        Raises:
            DataError: The function raised, returned the wrong number of values, or a value that is not a number within
                1e9.
        """
        if not trajectories:
            return []
        names = self._parameters.keys()
        if names >= _ONE:
            offer = self._of_one
        elif names & _SINGLE and not names & _BATCH:
            offer = self._of_single
        else:
            return self._checked(await self._call(self._of_all(trajectories)), trajectories)
        scores = [await self._call(offer(each), _about(each)) for each in trajectories]
        scores = [score.get("score", score) if isinstance(score, Mapping) else score for score in scores]
        return self._checked(scores, trajectories)

    async def _call(self, offered: dict[str, Any], about: str = "") -> Any:  # noqa: ANN401 - whatever the function returns
        value, error = await self._outcome(self._taken(offered))
        if error is None:
            return value
        if isinstance(error, DataError):
            raise error
        at = place_of(self.function, error)
        raise DataError(f"reward {self.name}: {about}it raised {one_line(error)}{at}") from error

    async def _outcome(self, arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
        """Return what the function returned or raised: a SystemExit would end the event loop, a StopIteration fits no future."""

        def outcome() -> tuple[Any, BaseException | None]:
            try:
                return self.function(**arguments), None
            except BaseException as error:  # noqa: BLE001 - signals are raised in the main thread only
                return None, error

        if inspect.iscoroutinefunction(self.function):
            value, error = outcome()
        else:
            value, error = await self._threads.result(self._threads.submit(outcome))
        # A plain function may wrap an async one.
        if not inspect.isawaitable(value):
            return value, error
        try:
            return await value, None
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # noqa: BLE001
            return None, raised

    def _of_single(self, trajectory: Trajectory) -> dict[str, Any]:
        problem = trajectory.problem
        return {
            **problem.info,
            "prompt": [(message.role, message.text) for message in problem.messages],
            "completion": "".join(node.text for node in trajectory.nodes[1:]),
            "final_answer": answer_of(trajectory),
            "answer": list(problem.answer),
            "trajectory": trajectory,
            **self.args,
        }

    def _of_one(self, trajectory: Trajectory) -> dict[str, Any]:
        problem = trajectory.problem
        return {
            "data_source": problem.info.get("data_source"),
            "solution_str": response_of(trajectory),
            "ground_truth": problem.answer[0] if len(problem.answer) == 1 else list(problem.answer),
            "extra_info": dict(problem.info),
            **self.args,
        }

    def _of_all(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        columns = sorted({key for each in trajectories for key in each.problem.info})
        return {
            **{key: [each.problem.info.get(key) for each in trajectories] for key in columns},
            "prompts": [[(m.role, m.text) for m in each.problem.messages] for each in trajectories],
            "completions": ["".join(node.text for node in each.nodes[1:]) for each in trajectories],
            "answer": [list(each.problem.answer) for each in trajectories],
            "trajectories": list(trajectories),
            **self.args,
        }

    def _taken(self, offered: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the parameters that the function names.

        Raises:
            DataError: It needs another one.
        """
        parameters = self._parameters
        if _takes_all(parameters):
            return offered
        for key, parameter in parameters.items():
            if key not in offered and parameter.default is inspect.Parameter.empty:
                have = ", ".join(sorted(offered.keys() - self.args.keys()))
                at = place_of(self.function)
                raise DataError(f"reward {self.name}: unknown parameter {key!r}. Use {have}{at}")
        return {key: value for key, value in offered.items() if key in parameters}

    def _checked(self, returned: object, trajectories: Sequence[Trajectory]) -> list[float | None]:
        returned = _plain(returned)
        if not isinstance(returned, Sequence) and not hasattr(returned, "__array__"):
            raise DataError(
                f"reward {self.name}: expected a list of {len(trajectories)} numbers, got {type(returned).__name__}"
                f"{place_of(self.function)}"
            )
        values = list(returned)  # type: ignore[call-overload]
        if len(values) != len(trajectories):
            raise DataError(
                f"reward {self.name}: expected {len(trajectories)} values, one for each completion, got {len(values)}"
                f"{place_of(self.function)}"
            )
        return [self._number(value, each) for value, each in zip(values, trajectories, strict=True)]

    def _number(self, value: object, trajectory: Trajectory) -> float | None:
        value = _plain(value)
        if value is None:
            return None
        try:
            number = float(value) if isinstance(value, Real) else math.nan
        except OverflowError:
            number = math.inf
        if not abs(number) <= _LARGEST:
            shown = "a larger number" if number == math.inf else f"{value!r:.80}"
            raise DataError(
                f"reward {self.name}: {_about(trajectory)}expected a number from -1e9 to 1e9 or None, got {shown}"
                f"{place_of(self.function)}"
            )
        return number


def check_own_columns(parts: Iterable[RewardPart], problems: Sequence[Problem]) -> None:
    """Check that the problems of a run have the columns that functions of the user's own need.

    Raises:
        DataError: A function needs a parameter that no problem has.
    """
    columns = {key for problem in problems for key in problem.info}
    for part in parts:
        if isinstance(part, FunctionPart):
            part.check_columns(columns)


def load_reward(config: OwnPartConfig) -> tuple[FunctionPart, str]:
    """Load a function of a Python file as a part; also return the SHA-256 of the file.

    Raises:
        ConfigError: The file cannot be run or has no such function, or the function cannot take its `args`.
    """
    loaded = load_function(config.path, config.function)
    try:
        return FunctionPart(loaded.function, config.name or config.function, config.args), loaded.sha256
    except ConfigError as error:
        raise ConfigError(f"{config.path}: {error}") from None


def _about(trajectory: Trajectory) -> str:
    return f"problem {trajectory.problem.id!r}, trajectory {trajectory.leaf.id!r}: "


def _plain(value: object) -> object:
    """Return an array, a tensor or one number of theirs as Python's own lists and numbers; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _takes_all(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
