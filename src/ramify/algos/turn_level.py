"""Advantages of turns: what a turn earned and what came after it, compared with the same turn of the other trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ramify.algos.configs import TurnLevelConfig
from ramify.algos.ops import STD_FLOOR, PerGroup, Shared, centered, leaf_weights, spread_of, values
from ramify.core.records import AnnotatedTree, BatchSums, Floats, Reward
from ramify.core.tree import Source, Trajectory


@dataclass(frozen=True, slots=True)
class TurnLevel(PerGroup, TurnLevelConfig):
    """A_{j,i} = (G_{j,i} - mean_i) / (std_i + 1e-6) for the tokens of turn i of trajectory j.

    G_{j,i} = sum_{l >= i} discount^(l - i) e_{j,l} is the return from turn i on (Sutton and Barto, Reinforcement Learning,
    equation 3.8). e_{j,l} are the events of the reward in turn l; what the reward pays besides its events is paid at the
    last turn. Mean and standard deviation (with Bessel's correction) are over the trajectories of the tree that have a
    turn i, as in the turn-level groups of MT-GRPO (arXiv 2505.11821, section 4); `scale = "none"` does not divide. A
    turn that no other trajectory has gets 0. With `shared = "mass"` they weigh each leaf by its mass.

    Without events and with a discount of 1 the first turn has the advantage of `group`.
    """

    shared: Shared

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Advantage of each token of each trajectory. [G][T]"""
        del statistics
        values(tree.rewards)
        weights = leaf_weights(tree.tree, self.shared)
        turns = [_turns(trajectory) for trajectory in tree.tree.trajectories]
        returns = [
            _returns(ids, reward, self.discount) for ids, reward in zip(turns, tree.rewards, strict=True)
        ]
        gains = [np.zeros(len(each)) for each in returns]
        for turn in range(max(map(len, returns), default=0)):
            have = [j for j, each in enumerate(returns) if len(each) > turn]
            group, masses = np.array([returns[j][turn] for j in have]), weights[have]
            scale = 1.0 if self.scale == "none" else spread_of(group, masses) + STD_FLOOR
            for j, gain in zip(have, centered(group, masses) / scale, strict=True):
                gains[j][turn] = gain
        return tuple(
            np.repeat(gain, [sum(size for _, size in turn) for turn in ids])
            for gain, ids in zip(gains, turns, strict=True)
        )


def _turns(trajectory: Trajectory) -> list[list[tuple[str, int]]]:
    """The policy's turns, which are the runs of its nodes: for each the nodes, as id and number of tokens."""
    runs = groupby(trajectory.nodes, lambda node: node.source)
    return [
        [(node.id, len(node.token_ids)) for node in run] for source, run in runs if source is Source.POLICY
    ]


def _returns(turns: Sequence[Sequence[tuple[str, int]]], reward: Reward, discount: float) -> Floats:
    """The return from each turn on."""
    earned = [sum(reward.events.get(node, 0.0) for node, _ in turn) for turn in turns]
    if earned:
        earned[-1] += reward.value - sum(earned)
    returns = np.array(earned, dtype=np.float64)
    for turn in reversed(range(len(returns) - 1)):
        returns[turn] += discount * returns[turn + 1]
    return returns
