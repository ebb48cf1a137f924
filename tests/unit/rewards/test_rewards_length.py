import asyncio

from ramify.core.messages import Message, Problem
from ramify.core.tree import Node, Source, StopReason, Trajectory
from ramify.rewards.length import LengthReward


def written(count: int) -> Trajectory:
    prompt = Node("", (), None, Source.PROMPT, tuple(range(500)), "long prompt")
    leaf = Node("0", (0,), "", Source.POLICY, (1,) * count, "", (-1.0,) * count, stop=StopReason.TOKENS)
    return Trajectory(Problem("p", (Message.of("user", "?"),), ("a",)), (prompt, leaf))


def test_counts_written_tokens_only_and_is_clipped() -> None:
    rewards = asyncio.run(LengthReward().score([written(n) for n in (0, 16, 17, 1000, 5000)]))
    assert [r.value for r in rewards] == [0.0, 0.016, 0.017, 1.0, 1.0]


def test_parts_say_that_it_is_plumbing() -> None:
    [reward] = asyncio.run(LengthReward().score([written(250)]))
    assert reward.parts == {"plumbing_length": 0.25}
