"""The papers' released training rewards for recorded trajectories, with their defects, for comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.core.records import Reward
from ramify.core.tree import StopReason, Trajectory
from ramify.rewards import compat_arpo as arpo
from ramify.rewards import compat_toolstar as toolstar

_MATH_SOURCE = "grpo_math"
"""The `data_source` that Tool-Star scores as mathematics; all others get word F1."""


@dataclass(frozen=True, slots=True)
class CompatReward:
    """The reward that ARPO's or Tool-Star's code would give the text of each trajectory.

    Parts: `correct` (word F1, or 1 for equal mathematics), `format` (whether the text passed their format check).
    """

    system: Literal["arpo", "toolstar"]

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """One reward for each trajectory, in order."""
        return tuple(self._score(trajectory) for trajectory in trajectories)

    def _score(self, trajectory: Trajectory) -> Reward:
        text = "".join(node.text for node in trajectory.nodes[1:]).replace(toolstar.END_OF_TURN, "")
        golds = list(trajectory.problem.answer)
        if self.system == "arpo":
            found = arpo.reward(text, golds)
        elif trajectory.problem.info.get("data_source") != _MATH_SOURCE:
            found = toolstar.reward(text, golds)
        else:
            ended = text + toolstar.END_OF_TURN if trajectory.stop is StopReason.ANSWERED else text
            found = toolstar.math_reward(ended, golds[0] if golds else None)
            is_equal = found["reason"] == "correct answer"
            wrong = found["reason"].startswith("format good")  # type: ignore[union-attr]
            return Reward(
                float(found["score"]), {"correct": float(is_equal), "format": float(is_equal or wrong)}
            )
        score, reason = float(found["score"]), str(found["reason"])
        f1 = score - arpo.BONUS if "at the same time" in reason else max(score, 0.0)
        return Reward(score, {"correct": f1, "format": float(score >= 0)})
