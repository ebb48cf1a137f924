r"""Reward of the final answer as named parts: correctness, format and a bonus for using several tools.

With its defaults it is the hierarchical reward of ARPO's RL stage (arXiv 2507.19849): -1 if the trajectory is not well
formed; 0 if the answer does not match; else the score of the match, plus a bonus for using both tools.

Everything is read from the recorded tree (`core.tree`), never from the text of calls.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ramify.core.messages import ToolStatus
from ramify.core.records import Reward
from ramify.core.tree import StopReason, Trajectory
from ramify.rewards.answer_scores import AnswerScore
from ramify.rewards.extract import answer_of, has_closed_box

SEARCH_AND_PYTHON = frozenset({"search", "python"})
_UNUSABLE = frozenset({ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL})


@dataclass(frozen=True, slots=True)
class AnswerReward:
    r"""`correct_weight` * correct + `format_weight` * format + bonus; `malformed` if not well formed.

    A trajectory is well formed if the policy ended with an answer that has a closed `\boxed{...}`, and each of its calls
    could be parsed and named a tool. The bonus requires a correct answer (partly correct is enough) and a successful call
    of each of `bonus_tools`; calls that were refused, failed or found nothing do not count.

    Parts: `correct` (the trained score; 0 if not well formed and `malformed` is set), `format` (0 or 1), `bonus`, and
    each of `reported`.

    Attributes:
        trained: The score that counts, in [0, 1].
        reported: Further scores that are only reported, by name.
        correct_weight, format_weight: Weights of these parts.
        bonus: Added for using all of `bonus_tools`.
        bonus_tools: Names of the tools.
        malformed: Reward if not well formed; None: scored like the rest, with a format of 0.
    """

    trained: AnswerScore
    reported: Mapping[str, AnswerScore] = field(default_factory=dict)
    correct_weight: float = 1.0
    format_weight: float = 0.0
    bonus: float = 0.1
    bonus_tools: frozenset[str] = SEARCH_AND_PYTHON
    malformed: float | None = -1.0

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """One reward for each trajectory, in order. Runs in a thread, since a score may wait for math-verify."""
        return await asyncio.to_thread(lambda: [self._score(trajectory) for trajectory in trajectories])

    def _score(self, trajectory: Trajectory) -> Reward:
        answer, golds = answer_of(trajectory), trajectory.problem.answer
        others = {name: score(answer, golds) for name, score in self.reported.items()}
        well_formed = is_well_formed(trajectory)
        if not well_formed and self.malformed is not None:
            return Reward(self.malformed, {"correct": 0.0, "format": 0.0, "bonus": 0.0, **others})
        correct = self.trained(answer, golds)
        bonus = self.bonus if correct > 0 and tools_that_worked(trajectory) >= self.bonus_tools else 0.0
        value = self.correct_weight * correct + self.format_weight * well_formed + bonus
        return Reward(value, {"correct": correct, "format": float(well_formed), "bonus": bonus, **others})


def is_well_formed(trajectory: Trajectory) -> bool:
    """Whether the policy ended with a boxed answer, and all its calls could be parsed and named a tool."""
    boxed = has_closed_box(trajectory.final_answer)
    return boxed and trajectory.stop is StopReason.ANSWERED and not _has_unusable_call(trajectory)


def tools_that_worked(trajectory: Trajectory) -> frozenset[str]:
    """Names of the tools with at least one successful call."""
    return frozenset(call.name for call, result in trajectory.exchanges if result.status is ToolStatus.OK)


def _has_unusable_call(trajectory: Trajectory) -> bool:
    return any(call.malformed is not None for node in trajectory.policy_nodes for call in node.calls) or any(
        result.status in _UNUSABLE for _, result in trajectory.exchanges
    )
