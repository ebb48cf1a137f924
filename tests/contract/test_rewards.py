"""Laws of every reward: one finite number for each trajectory, in order, and equal for equal trajectories."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ramify.assemble.reward import build_reward
from ramify.chat.tags import parse_turn
from ramify.config.mistakes import form_of
from ramify.config.schema_parts import RewardSection
from ramify.core.messages import Calls, ToolCall, ToolResult, ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.rewards.configs import (
    AnswerRewardConfig,
    CompatRewardConfig,
    HierarchicalRewardConfig,
    LengthRewardConfig,
    OwnPartConfig,
    PartsRewardConfig,
    ScoreName,
)
from ramify.rewards.trajectory_rewards import OverlongReward
from random_trees import node, tree_of

SECTIONS = [
    LengthRewardConfig(name="length"),
    HierarchicalRewardConfig(name="hierarchical"),
    *(AnswerRewardConfig(name="answer", score=score) for score in get_args(ScoreName)),
    AnswerRewardConfig(name="answer", needs_form=False, format_weight=0.1, reported=("em", "acc")),
    *(CompatRewardConfig(name="compat", system=system) for system in ("arpo", "toolstar")),
    PartsRewardConfig(
        name="parts", own=(OwnPartConfig(path=Path(__file__).with_name("own_reward.py"), function="length"),)
    ),
]
NAMES = {form_of(section)[1][0] for section in get_args(get_args(RewardSection)[0])}
REWARDS = [build_reward(section).fn for section in SECTIONS]
REWARDS += [OverlongReward(reward, 20, 18) for reward in REWARDS]
ENDS = [
    (r"<answer> \boxed{ 1 } </answer>", StopReason.ANSWERED),
    (r"<answer> \boxed{ 2 } </answer>", StopReason.ANSWERED),
    (r"<think> hm </think><answer> \boxed{1} </answer>", StopReason.ANSWERED),
    ("<answer> one </answer>", StopReason.ANSWERED),
    ("<think> hm", StopReason.TOKENS),
    ("", StopReason.MALFORMED),
    ("<python> 1 </python>", StopReason.CALLS),
]


def test_every_reward_of_a_recipe_is_here():
    # The environment's pays what an environment recorded, so its trees are those of tests/unit/rewards.
    assert {section.name for section in SECTIONS} == NAMES - {"environment"}


def leaf(path, end):
    text, stop = end
    written = node(path, Source.POLICY, range(len(path), len(text) + 5))
    return replace(written, text=text, stop=stop, turn=parse_turn(text, {}))


@pytest.fixture(scope="module")
def tree():
    """Every end at a root, and every end after a call whose result has each status."""
    nodes = [node((), Source.PROMPT, [1, 2])]
    nodes += [leaf((root,), end) for root, end in enumerate(ENDS)]
    for root, status in enumerate(ToolStatus, start=len(ENDS)):
        call = ToolCall(f"{root}:0", "python", {"code": "1"})
        nodes.append(replace(node((root,), Source.POLICY, [3]), turn=Calls((call,))))
        nodes.append(replace(node((root, 0), Source.TOOL, [4]), results=(ToolResult(call.id, status, "1"),)))
        nodes += [leaf((root, 0, child), end) for child, end in enumerate(ENDS)]
    return tree_of(nodes)


def score(reward, trajectories):
    return asyncio.run(reward.score(trajectories))


@pytest.mark.parametrize("reward", REWARDS, ids=range(len(REWARDS)))
def test_one_finite_reward_each_whatever_the_end(reward, tree):
    rewards = score(reward, tree.trajectories)
    assert len(rewards) == len(tree.trajectories) == len(ENDS) * (1 + len(ToolStatus))
    assert len({each.value for each in rewards}) > 1
    names = {frozenset(each.parts) for each in rewards}
    assert len(names) == 1
    for each in rewards:
        assert math.isfinite(each.value)
        assert all(math.isfinite(part) for part in each.parts.values())
        assert each.events.keys() <= tree.by_id.keys()


@pytest.mark.parametrize("reward", REWARDS, ids=range(len(REWARDS)))
def test_a_trajectory_is_scored_by_itself(reward, tree):
    together = list(score(reward, tree.trajectories))
    assert [score(reward, [trajectory])[0] for trajectory in tree.trajectories] == together
    assert list(reversed(score(reward, tree.trajectories[::-1]))) == together
    assert len(score(reward, [])) == 0
