import asyncio

import numpy as np
import pytest

from ramify.core.errors import ConfigError
from ramify.core.messages import Message, Problem
from ramify.core.records import Reward
from ramify.core.tree import Node, Source, StopReason, Trajectory
from ramify.rewards.length import LengthReward, OverlongReward

MAX, MARGIN = 100, 40


def written(count, stop=StopReason.ANSWERED, results=0):
    """A prompt, a turn, a tool result of so many tokens, a turn; `count` tokens by the policy."""
    first = count // 3
    last = count - first
    nodes = (
        Node("", (), None, Source.PROMPT, tuple(range(500)), "long prompt"),
        Node("0", (0,), "", Source.POLICY, (1,) * first, "", (-1.0,) * first),
        Node("0.0", (0, 0), "0", Source.TOOL, (2,) * results, ""),
        Node("0.0.0", (0, 0, 0), "0.0", Source.POLICY, (1,) * last, "", (-1.0,) * last, stop=stop),
    )
    return Trajectory(Problem("p", (Message.of("user", "?"),), ("a",)), nodes)


class Constant:
    async def score(self, trajectories):
        return tuple(Reward(0.75, {"correct": 0.75}, {"0": 1.0}) for _ in trajectories)


def punishments(trajectories):
    rewards = asyncio.run(OverlongReward(Constant(), MAX, MARGIN).score(trajectories))
    for reward in rewards:
        assert reward.value == 0.75 + reward.parts["overlong"]
        assert reward.parts == {"correct": 0.75, "overlong": reward.parts["overlong"]}
        assert reward.events == {"0": 1.0}
    return [reward.parts["overlong"] for reward in rewards]


def test_equation_13_of_dapo():
    lengths = [0, 1, 59, 60, 61, 70, 80, 99, 100]

    def textbook(length):
        if length <= MAX - MARGIN:
            return 0.0
        if length <= MAX:
            return ((MAX - MARGIN) - length) / MARGIN
        return -1.0

    found = punishments([written(length) for length in lengths])
    np.testing.assert_array_equal(found, [textbook(length) for length in lengths])
    assert found[lengths.index(80)] == -0.5
    assert found[-1] == -1.0


@pytest.mark.parametrize("stop", StopReason)
def test_a_trajectory_that_was_cut_has_the_whole_punishment_however_short(stop):
    expected = -1.0 if stop.truncated else 0.0
    assert punishments([written(9, stop)]) == [expected]


def test_only_what_the_policy_wrote_counts():
    assert punishments([written(60, results=300)]) == [0.0]


def test_the_margin_may_be_the_whole_length_and_no_more():
    (reward,) = asyncio.run(OverlongReward(LengthReward(), 100, 100).score([written(50)]))
    assert reward.parts == {"plumbing_length": 0.05, "overlong": -0.5}
    for margin in (0, 101):
        with pytest.raises(ConfigError, match="expected 1 to max_tokens = 100"):
            OverlongReward(LengthReward(), 100, margin)


def test_the_plumbing_reward_counts_what_the_policy_wrote():
    rewards = asyncio.run(
        LengthReward().score([written(n, StopReason.TOKENS) for n in (0, 16, 17, 1000, 5000)])
    )
    assert [reward.value for reward in rewards] == [0.0, 0.016, 0.017, 1.0, 1.0]
    assert rewards[1].parts == {"plumbing_length": 0.016}
