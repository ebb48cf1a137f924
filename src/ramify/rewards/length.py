"""Rewards of length: a plumbing reward for smoke runs, and DAPO's shaping (arXiv 2503.14476, equation 13)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramify.core.errors import ConfigError
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward
from ramify.core.tree import Trajectory

_TOKENS_FOR_FULL_REWARD = 1000


@dataclass(frozen=True, slots=True)
class LengthReward:
    """Written tokens / 1000, at most 1: plumbing, not a measure of quality.

    It differs between trajectories of unequal length, so an untrained model gets a gradient that is not zero.
    Parts: `plumbing_length`, the value itself.
    """

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """One reward for each trajectory, in order."""
        values = [min(1.0, trajectory.num_written / _TOKENS_FOR_FULL_REWARD) for trajectory in trajectories]
        return tuple(Reward(value, {"plumbing_length": value}) for value in values)


@dataclass(frozen=True, slots=True)
class OverlongReward:
    """Another reward, plus 0 up to max - margin written tokens, from there on falling in a straight line to -1 at max.

    |y| <= max - margin: 0; up to max: (max - margin - |y|) / margin; a trajectory that was cut (by tokens, calls or a
    deadline): -1, however long. |y| counts what the policy wrote, tool results excluded. Parts: those of `inner`,
    and `overlong`.

    Attributes:
        inner: What is shaped.
        max_tokens: The limit of a trajectory, tokens after its prompt.
        margin: Tokens below the limit at which the punishment begins.

    Raises:
        ConfigError: The margin is not within 1 to `max_tokens`.
    """

    inner: RewardFn
    max_tokens: int
    margin: int

    def __post_init__(self) -> None:
        if not 1 <= self.margin <= self.max_tokens:
            raise ConfigError(
                f"overlong_margin: expected 1 to max_tokens = {self.max_tokens}, got {self.margin}"
            )

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """One reward for each trajectory, in order."""
        scored = await self.inner.score(trajectories)
        return tuple(
            self._shaped(trajectory, reward) for trajectory, reward in zip(trajectories, scored, strict=True)
        )

    def _shaped(self, trajectory: Trajectory, reward: Reward) -> Reward:
        punishment = self._punishment(trajectory)
        return replace(
            reward, value=reward.value + punishment, parts={**reward.parts, "overlong": punishment}
        )

    def _punishment(self, trajectory: Trajectory) -> float:
        if trajectory.stop.truncated:
            return -1.0
        return min(0.0, (self.max_tokens - self.margin - trajectory.num_written) / self.margin)
