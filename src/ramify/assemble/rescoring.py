"""Recorded trees, scored again with another reward."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ramify.assemble.reward import build_reward
from ramify.config.load import load_tables
from ramify.config.schema_parts import RewardTable
from ramify.core.records import Reward
from ramify.core.tree import Trajectory
from ramify.obs.metrics import TimingLog
from ramify.obs.trace import TracedTree, each_tree
from ramify.rewards.trajectory_rewards import OVERLONG
from ramify.runs.recorded_trees import tree_at
from ramify.sampler.sampler import Scoring


def rescore(
    recipe: Path, overrides: Sequence[str], traces: Sequence[Path], tree: int | None = None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return old and new reward of each trajectory of files of trees, or of one tree of each, scored by a recipe's `[reward]`.

    The second value has notes on the trees that could not be scored, whose trajectories do not count. A recorded penalty for
    length stays: it is the algorithm's. `counts`: both rewards count.

    Raises:
        UserError: The recipe or a file is wrong, the judge is down, or problem after problem cannot be scored.
    """
    built = build_reward(load_tables(RewardTable, recipe, overrides).reward)
    scoring = Scoring(built.fn, TimingLog())

    async def rows() -> list[dict[str, Any]]:
        try:
            return [
                row
                for trace in traces
                for number, traced in (
                    enumerate(each_tree(trace)) if tree is None else ((tree, tree_at(trace, tree)),)
                )
                for row in await _rows(scoring, f"{trace}", number, traced)
            ]
        finally:
            await built.close()

    scored = asyncio.run(rows())
    scoring.require_success()
    return scored, scoring.timing.failure_notes()


Penalty: TypeAlias = Callable[[Trajectory], float]
"""What a trajectory's reward loses for its length."""


def rescore_trees(
    recipe: Path, overrides: Sequence[str], trees: Sequence[TracedTree], penalty: Penalty
) -> list[TracedTree]:
    """Return trees with the rewards of a recipe's `[reward]` and a penalty for length; what did not count does not.

    Raises:
        UserError: As `rescore`.
    """
    built = build_reward(load_tables(RewardTable, recipe, overrides).reward)
    scoring = Scoring(built.fn, TimingLog())

    async def scored() -> list[TracedTree]:
        try:
            return [_again(traced, (await scoring.score(traced.tree)).rewards, penalty) for traced in trees]
        finally:
            await built.close()

    rescored = asyncio.run(scored())
    scoring.require_success()
    return rescored


def _again(traced: TracedTree, rewards: Sequence[Reward], penalty: Penalty | None = None) -> TracedTree:
    """Return a tree with new rewards; without a `penalty` the recorded one stays."""
    rescored = []
    for trajectory, old, new in zip(traced.tree.trajectories, traced.rewards, rewards, strict=True):
        lost = old.parts.get(OVERLONG, 0.0) if penalty is None else penalty(trajectory)
        rescored.append(replace(new, value=new.value + lost, counts=old.counts and new.counts))
    return replace(traced, rewards=tuple(rescored))


async def _rows(scoring: Scoring, trace: str, number: int, traced: TracedTree) -> list[dict[str, Any]]:
    scored = _again(traced, (await scoring.score(traced.tree)).rewards)
    return [
        {
            "trace": trace,
            "tree": number,
            "problem": traced.tree.problem.id,
            "leaf": trajectory.leaf.id,
            "stop": trajectory.stop,
            "old": old.value,
            "new": new.value,
            "parts": dict(new.parts),
            "counts": new.counts,
        }
        for trajectory, old, new in zip(traced.tree.trajectories, traced.rewards, scored.rewards, strict=True)
    ]
