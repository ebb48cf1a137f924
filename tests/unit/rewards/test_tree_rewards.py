import asyncio

import pytest

from ramify.core.errors import DataError
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source
from ramify.rewards.tree_rewards import score_tree
from random_trees import node, tree_of

TREE = tree_of(
    [
        node((), Source.PROMPT, [2]),
        node((0,), Source.POLICY, [3], leaf=True),
        node((1,), Source.POLICY, [4], leaf=True),
    ]
)


class Gives:
    """The same rewards for every tree."""

    def __init__(self, *rewards):
        self.rewards = rewards

    async def score(self, trajectories):
        return self.rewards[: len(trajectories)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_told_with_its_problem_and_trajectory(bad):
    good = Reward(1.0, {"correct": 1.0})
    with pytest.raises(DataError, match=r"problem 'p', trajectory '1': .* value = (nan|inf)"):
        asyncio.run(score_tree(Gives(good, Reward(bad, {"correct": 1.0})), TREE))
    with pytest.raises(DataError, match=r"problem 'p', trajectory '0': .* correct = (nan|inf)"):
        asyncio.run(score_tree(Gives(Reward(0.0, {"correct": bad}), good), TREE))
    with pytest.raises(DataError, match=r"problem 'p', trajectory '0': .* returned 0 = (nan|inf)"):
        asyncio.run(score_tree(Gives(Reward(0.0, {}, {"0": bad}), good), TREE))


def test_other_rewards_are_handed_on():
    rewards = (Reward(1.0, {"correct": 0.5}), Reward(-1.0, {}, {"0": 0.25}))
    assert asyncio.run(score_tree(Gives(*rewards), TREE)) == ScoredTree(TREE, rewards)
