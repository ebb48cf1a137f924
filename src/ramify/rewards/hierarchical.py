r"""The papers' hierarchical reward, decided from what was recorded and not from counting tags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ramify.chat.tags import final_answer
from ramify.core.messages import ToolStatus
from ramify.core.records import Reward
from ramify.core.tree import Source, StopReason, Trajectory
from ramify.rewards.answers import extract_boxed

_BONUS_TOOLS = frozenset({"search", "python"})
_UNUSABLE = frozenset({ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL})


@dataclass(frozen=True, slots=True)
class HierarchicalReward:
    r"""-1 unless well formed; 0 when the answer does not match; else the match, plus `bonus` for using both tools.

    ARPO, arXiv 2507.19849, the reward of its RL stage. Well formed: the policy ended with an answer that holds a balanced
    `\boxed{...}`, and each of its calls could be read and named a tool. The bonus needs at least one call of
    search and one of python that did its work. `match(boxed answer, golds)` lies in [0, 1].

    Parts: `correct` (the match; 0 when not well formed), `format` (0 or 1), `bonus` (0 or `bonus`).
    """

    match: Callable[[str, Sequence[str]], float]
    bonus: float = 0.1

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """One reward for each trajectory, in order."""
        return tuple(self._score(trajectory) for trajectory in trajectories)

    def _score(self, trajectory: Trajectory) -> Reward:
        boxed = extract_boxed(final_answer(_last_turn(trajectory)) or "")
        if boxed is None or trajectory.stop is not StopReason.ANSWERED or _has_unusable_call(trajectory):
            return Reward(-1.0, {"correct": 0.0, "format": 0.0, "bonus": 0.0})
        correct = self.match(boxed, trajectory.problem.answer)
        worked = {call.name for call, result in trajectory.exchanges if result.status is ToolStatus.OK}
        bonus = self.bonus if correct > 0 and worked >= _BONUS_TOOLS else 0.0
        return Reward(correct + bonus, {"correct": correct, "format": 1.0, "bonus": bonus})


def _last_turn(trajectory: Trajectory) -> str:
    """Text of the last turn: the leaf, and the nodes before it where new weights split the turn."""
    nodes = takewhile(lambda node: node.source is Source.POLICY, reversed(trajectory.nodes))
    return "".join(reversed([node.text for node in nodes]))


def _has_unusable_call(trajectory: Trajectory) -> bool:
    return any(call.malformed is not None for node in trajectory.policy_nodes for call in node.calls) or any(
        result.status in _UNUSABLE for _, result in trajectory.exchanges
    )
