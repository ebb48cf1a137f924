"""A reward as a sum of weighted parts: a base reward, a judge's verdict, the user's own functions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Problem
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward
from ramify.core.tree import Trajectory
from ramify.rewards.extract import answer_of

JudgeScore: TypeAlias = Callable[[Problem, str], Awaitable[float | None]]
"""The verdict on an answer ("" if there was none), in [0, 1]; None if there is no verdict."""


class RewardPart(Protocol):
    """A named number for each trajectory."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    async def values(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        """One value for each trajectory, in order; None if the part does not apply."""
        ...


@dataclass(frozen=True, slots=True)
class WeightedPart:
    """A part and its weight; a part with weight 0 is only reported."""

    part: RewardPart
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PartsReward:
    """The value of `base` plus weight * value of each part that applies. Parts: those of `base`, and each by its name.

    Attributes:
        base: The reward to which the parts are added; None: only the parts count.
        parts: The parts; each has a different name.

    Raises:
        ConfigError: Two parts have the same name, or there is neither a base nor a part.
    """

    base: RewardFn | None
    parts: Sequence[WeightedPart]

    def __post_init__(self) -> None:
        names = [each.part.name for each in self.parts]
        if len(set(names)) < len(names):
            raise ConfigError(f"reward: two parts share a name: {', '.join(sorted(names))}")
        if self.base is None and not names:
            raise ConfigError("reward: expected at least one part")

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """One reward for each trajectory, in order.

        Raises:
            DataError: No part applies to a trajectory, or a part has the same name as a part of `base`.
        """
        base = None if self.base is None else await self.base.score(trajectories)
        columns = [await each.part.values(trajectories) for each in self.parts]
        return tuple(
            self._added(trajectory, None if base is None else base[i], [column[i] for column in columns])
            for i, trajectory in enumerate(trajectories)
        )

    def _added(self, trajectory: Trajectory, base: Reward | None, values: Sequence[float | None]) -> Reward:
        applied = [(each, value) for each, value in zip(self.parts, values, strict=True) if value is not None]
        if base is None and not applied:
            raise DataError(
                f"problem {trajectory.problem.id!r}: no part of the reward applies (all returned None); expected a number"
            )
        given = {each.part.name: value for each, value in applied}
        known = {} if base is None else base.parts
        if shared := given.keys() & known.keys():
            raise DataError(
                f"reward: a part is called {min(shared)!r} as one of the built-in parts is; rename it"
            )
        value = sum((each.weight * value for each, value in applied), 0.0 if base is None else base.value)
        return Reward(value, {**known, **given}, {} if base is None else base.events)


@dataclass(frozen=True, slots=True)
class JudgePart:
    """A judge's verdict on the answer of each trajectory."""

    judge: JudgeScore
    name: str = "judge"

    async def values(self, trajectories: Sequence[Trajectory]) -> Sequence[float | None]:
        """The verdicts; None if the judge gave none."""
        asked = (self.judge(trajectory.problem, answer_of(trajectory)) for trajectory in trajectories)
        return await asyncio.gather(*asked)
