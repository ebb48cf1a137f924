"""Rewards for length: a trivial one for smoke runs, and DAPO's overlong penalty (arXiv 2503.14476, equation 13)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramify.core.errors import ConfigError
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward
from ramify.core.tree import Trajectory

_TOKENS_FOR_FULL_REWARD = 1000


@dataclass(frozen=True, slots=True)
class LengthReward:
    """Response tokens / 1000, at most 1: for testing the pipeline, not a measure of quality.

    It differs between trajectories of different length, so even an untrained model gets a nonzero gradient.
    Parts: `plumbing_length`, the value itself.
    """

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """One reward for each trajectory, in order."""
        values = [min(1.0, trajectory.num_written / _TOKENS_FOR_FULL_REWARD) for trajectory in trajectories]
        return tuple(Reward(value, {"plumbing_length": value}) for value in values)


@dataclass(frozen=True, slots=True)
class OverlongReward:
    """Another reward plus a penalty for length: 0 up to max - margin response tokens, then falling linearly to -1 at max.

    With |y| the number of response tokens, without tool results: 0 if |y| <= max - margin; (max - margin - |y|) / margin
    up to max; -1 for any trajectory that was truncated (by tokens, calls or a deadline). Parts: those of `inner`, and
    `overlong`.

    Attributes:
        inner: The reward to which the penalty is added.
        max_tokens: The limit of a trajectory: tokens after its prompt.
        margin: How many tokens below the limit the penalty begins.

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
