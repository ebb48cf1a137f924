"""Laws of every reward: one finite number for each trajectory, in order, and equal for equal trajectories."""

import asyncio
import itertools
import math
from dataclasses import replace
from typing import get_args

import pytest

from ramify.config.build import build_reward
from ramify.config.schema_parts import RewardSection
from ramify.core.messages import ToolCall, ToolResult, ToolStatus
from ramify.core.tree import Source, StopReason
from random_trees import node, tree_of

SECTIONS = [
    RewardSection(name=name, match=match)
    for name, match in itertools.product(
        get_args(RewardSection.model_fields["name"].annotation),
        get_args(RewardSection.model_fields["match"].annotation),
    )
]
ENDS = [
    (r"<answer> \boxed{ 1 } </answer>", StopReason.ANSWERED),
    (r"<answer> \boxed{ 2 } </answer>", StopReason.ANSWERED),
    ("<answer> one </answer>", StopReason.ANSWERED),
    ("<think> hm", StopReason.TOKENS),
    ("", StopReason.MALFORMED),
    ("<python> 1 </python>", StopReason.CALLS),
]


def leaf(path, end):
    text, stop = end
    return replace(node(path, Source.POLICY, range(len(path), len(text) + 5)), text=text, stop=stop)


@pytest.fixture(scope="module")
def tree():
    """Every end at a root, and every end after a call whose result has each status."""
    nodes = [node((), Source.PROMPT, [1, 2])]
    nodes += [leaf((root,), end) for root, end in enumerate(ENDS)]
    for root, status in enumerate(ToolStatus, start=len(ENDS)):
        call = ToolCall(f"{root}:0", "python", {"code": "1"})
        nodes.append(replace(node((root,), Source.POLICY, [3]), calls=(call,)))
        nodes.append(replace(node((root, 0), Source.TOOL, [4]), results=(ToolResult(call.id, status, "1"),)))
        nodes += [leaf((root, 0, child), end) for child, end in enumerate(ENDS)]
    return tree_of(nodes)


def score(section, trajectories):
    return asyncio.run(build_reward(section).score(trajectories))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: f"{s.name}-{s.match}")
def test_one_finite_reward_each_whatever_the_end(section, tree):
    rewards = score(section, tree.trajectories)
    assert len(rewards) == len(tree.trajectories) == len(ENDS) * (1 + len(ToolStatus))
    assert len({reward.value for reward in rewards}) > 1
    names = {frozenset(reward.parts) for reward in rewards}
    assert len(names) == 1
    for reward in rewards:
        assert math.isfinite(reward.value)
        assert all(math.isfinite(part) for part in reward.parts.values())
        assert reward.events.keys() <= tree.by_id.keys()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: f"{s.name}-{s.match}")
def test_a_trajectory_is_scored_by_itself(section, tree):
    together = list(score(section, tree.trajectories))
    assert [score(section, [trajectory])[0] for trajectory in tree.trajectories] == together
    assert list(reversed(score(section, tree.trajectories[::-1]))) == together
    assert len(score(section, [])) == 0
