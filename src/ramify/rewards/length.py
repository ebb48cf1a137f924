"""A plumbing reward for smoke runs: it rewards length and says nothing about answers."""

from collections.abc import Sequence
from dataclasses import dataclass

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
