"""Rewards of recorded trajectories: for their answers, for their length, and as the papers' released code pays them.

All read the record and never look for tags in the text; only `CompatReward` scores the text, since the released code does.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ramify.core.errors import DataError
from ramify.core.messages import ToolStatus
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import StopReason, Trajectory, Tree
from ramify.rewards import compat_arpo as arpo
from ramify.rewards import compat_toolstar as toolstar
from ramify.rewards.answer_scores import SCORES
from ramify.rewards.configs import AnswerRewardConfig, ScoreName
from ramify.rewards.extract import answer_of, has_closed_box, response_of

OVERLONG = "overlong"
"""The part of a reward that is a penalty for length."""
SEARCH_AND_PYTHON = frozenset({"search", "python"})
_UNUSABLE = frozenset({ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL})
_TOKENS_FOR_FULL_REWARD = 1000
_MATH_SOURCE = "grpo_math"
"""The `data_source` that Tool-Star scores as mathematics; all others get word F1."""


@dataclass(frozen=True, slots=True)
class AnswerReward:
    r"""`correct_weight` * correct + `format_weight` * format + bonus; `malformed` if not well formed.

    With its defaults it is the hierarchical reward of ARPO's RL stage (arXiv 2507.19849): -1 if the trajectory is not well
    formed; 0 if the answer does not match; else the score of the match, plus a bonus for using both tools.

    A trajectory is well formed if the policy ended with an answer that has a closed `\boxed{...}`, and each of its calls
    could be parsed and named a tool. The bonus requires a correct answer (partly correct is enough) and a successful call
    of search and of python; calls that were refused, failed or found nothing do not count.

    Parts: `correct` (the trained score; 0 if not well formed, unless `needs_form` is off), `format` (0 or 1), `bonus`, and
    each of the reported scores: those of the recipe, and `also`.
    """

    config: AnswerRewardConfig = AnswerRewardConfig()
    also: Sequence[ScoreName] = ()

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Return one reward for each trajectory, in order. Runs in a thread, since a score may wait for math-verify."""
        return await asyncio.to_thread(lambda: [self._score(trajectory) for trajectory in trajectories])

    def _score(self, trajectory: Trajectory) -> Reward:
        answer, golds = answer_of(trajectory), trajectory.problem.answer
        config = self.config
        others: dict[str, float] = {
            name: SCORES[name](answer, golds) for name in (*config.reported, *self.also)
        }
        well_formed = (
            trajectory.stop is StopReason.ANSWERED
            and has_closed_box(trajectory.final_answer)
            and all(call.malformed is None for node in trajectory.policy_nodes for call in node.calls)
            and all(result.status not in _UNUSABLE for _, result in trajectory.exchanges)
        )
        if not well_formed and config.needs_form:
            return Reward(config.malformed, {"correct": 0.0, "format": 0.0, "bonus": 0.0, **others})
        correct = SCORES[config.score](answer, golds)
        worked = {call.name for call, result in trajectory.exchanges if result.status is ToolStatus.OK}
        bonus = config.bonus if correct > 0 and worked >= SEARCH_AND_PYTHON else 0.0
        value = config.correct_weight * correct + config.format_weight * well_formed + bonus
        return Reward(value, {"correct": correct, "format": float(well_formed), "bonus": bonus, **others})


@dataclass(frozen=True, slots=True)
class LengthReward:
    """Response tokens / 1000, at most 1: for testing the pipeline, not a measure of quality.

    It differs between trajectories of different length, so even an untrained model gets a nonzero gradient.
    Parts: `plumbing_length`, the value itself.
    """

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Return one reward for each trajectory, in order."""
        values = [min(1.0, trajectory.num_written / _TOKENS_FOR_FULL_REWARD) for trajectory in trajectories]
        return tuple(Reward(value, {"plumbing_length": value}) for value in values)


@dataclass(frozen=True, slots=True)
class EnvironmentReward:
    """The reward of the environment, by turn and for the whole trajectory; its events name the nodes.

    Parts: `correct`, 1 if it is at least `right_at`, and `paid`.
    """

    right_at: float = 1.0

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Return one reward for each trajectory, in order."""
        return tuple(map(self._score, trajectories))

    def _score(self, trajectory: Trajectory) -> Reward:
        paid = trajectory.paid
        events = {node.id: node.reward for node in trajectory.policy_nodes if node.reward}
        return Reward(paid, {"correct": float(paid >= self.right_at), "paid": paid}, events)


@dataclass(frozen=True, slots=True)
class OverlongReward:
    """Another reward plus DAPO's penalty for length (arXiv 2503.14476, equation 13): 0 up to max - margin response tokens, then falling linearly to -1 at max.

    With |y| the number of response tokens, without tool results: 0 if |y| <= max - margin; (max - margin - |y|) / margin
    up to max; -1 for any trajectory that a limit on tokens or calls cut. Parts: those of `inner`, and
    `overlong`.

    Attributes:
        inner: The reward to which the penalty is added.
        max_tokens: The limit of a trajectory: tokens after its prompt.
        margin: How many tokens below the limit the penalty begins, 1 to `max_tokens`.
    """

    inner: RewardFn
    max_tokens: int
    margin: int

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Return one reward for each trajectory, in order."""
        return tuple(map(self._shaped, trajectories, await self.inner.score(trajectories)))

    def _shaped(self, trajectory: Trajectory, reward: Reward) -> Reward:
        penalty = length_penalty(trajectory, self.max_tokens, self.margin)
        return replace(reward, value=reward.value + penalty, parts={**reward.parts, OVERLONG: penalty})


def length_penalty(trajectory: Trajectory, max_tokens: int, margin: int) -> float:
    """Return the penalty of `OverlongReward`, which is at most 0."""
    if trajectory.stop.truncated:
        return -1.0
    return min(0.0, (max_tokens - margin - trajectory.num_written) / margin)


@dataclass(frozen=True, slots=True)
class CompatReward:
    """The reward that ARPO's or Tool-Star's code would give the text of each trajectory.

    Parts: `correct` (word F1, or 1 for equal mathematics), `format` (1 if the text passed their format check).
    """

    system: Literal["arpo", "toolstar"]

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Return one reward for each trajectory, in order. Runs in a thread, as Tool-Star's mathematics waits for math-verify."""
        return await asyncio.to_thread(lambda: [self._score(trajectory) for trajectory in trajectories])

    def _score(self, trajectory: Trajectory) -> Reward:
        text = response_of(trajectory)
        golds = list(trajectory.problem.answer)
        if self.system == "arpo":
            scores = arpo.reward(text, golds)
        elif trajectory.problem.info.get("data_source") != _MATH_SOURCE:
            scores = toolstar.reward(text, golds)
        else:
            ended = text + toolstar.END_OF_TURN if trajectory.stop is StopReason.ANSWERED else text
            scores = toolstar.math_reward(ended, golds[0] if golds else None)
            is_equal = scores["reason"] == "correct answer"
            wrong = scores["reason"].startswith("format good")  # type: ignore[union-attr]
            return Reward(
                float(scores["score"]), {"correct": float(is_equal), "format": float(is_equal or wrong)}
            )
        score, reason = float(scores["score"]), str(scores["reason"])
        f1 = score - arpo.BONUS if "at the same time" in reason else max(score, 0.0)
        return Reward(score, {"correct": f1, "format": float(score >= 0)})


async def score_tree(reward: RewardFn, tree: Tree) -> ScoredTree:
    """Return the tree with the rewards of its leaves.

    A reward does not count if its function says so, or if a failure or the clock ended the trajectory.

    Raises:
        DataError: A value, a part or an event is not a finite number.
    """
    rewards: list[Reward] = []
    for trajectory, scored in zip(tree.trajectories, await reward.score(tree.trajectories), strict=True):
        for name, number in (("value", scored.value), *scored.parts.items(), *scored.events.items()):
            if not math.isfinite(number):
                raise DataError(
                    f"problem {tree.problem.id!r}, trajectory {trajectory.leaf.id!r}: the reward function returned "
                    f"{name} = {number}, expected a finite number. Correct the function, or the answer in the data"
                )
        rewards.append(scored if trajectory.stop.counts else replace(scored, counts=False))
    return ScoredTree(tree, tuple(rewards))
