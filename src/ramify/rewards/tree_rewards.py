"""The rewards of a tree, checked: a value that is not a finite number is reported with its problem before it is used."""

import math

from ramify.core.errors import DataError
from ramify.core.protocols import RewardFn
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree


async def score_tree(reward: RewardFn, tree: Tree) -> ScoredTree:
    """The tree with the rewards of its leaves.

    Raises:
        DataError: A value, a part or an event is not a finite number.
    """
    rewards = tuple(await reward.score(tree.trajectories))
    for trajectory, given in zip(tree.trajectories, rewards, strict=True):
        for name, number in (("value", given.value), *given.parts.items(), *given.events.items()):
            if not math.isfinite(number):
                raise DataError(
                    f"problem {tree.problem.id!r}, trajectory {trajectory.leaf.id!r}: the reward function returned "
                    f"{name} = {number}, expected a finite number; mend the function, or the answer in the data"
                )
    return ScoredTree(tree, rewards)
