"""Advantages of turns: what a turn earned and what came after it, compared with the same turn of the other trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt

from ramify.algos.estimators import EstimatorConfig, PerGroup
from ramify.algos.ops import STD_FLOOR, Shared, along, leaf_weights, leaves_below, spread_of, values
from ramify.core.config import PositiveFraction
from ramify.core.protocols import Estimator
from ramify.core.records import AnnotatedTree, BatchSums, Floats, Ints, Reward
from ramify.core.tree import Node, Source, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLevelConfig(EstimatorConfig):
    """The return from a turn on, compared with that of the same turn of the group's other trajectories.

    What the environment pays for a turn counts there, a turn later `discount` times as much, and so on. `scale`: divide by
    the standard deviation, or not.
    """

    name: Literal["turn_level"] = "turn_level"
    discount: PositiveFraction = 1.0
    scale: Literal["std", "none"] = "std"

    def estimator(self, shared: Shared) -> Estimator:
        """Return the estimator for rewards that hold all penalties."""
        return TurnLevel(shared, **self.values())


@dataclass(frozen=True, slots=True)
class TurnLevel(PerGroup, TurnLevelConfig):
    """A_{j,i} = (G_{j,i} - b) / (std_i + 1e-6) for the tokens of turn i of trajectory j.

    G_{j,i} = sum_{l >= i} discount^(l - i) e_{j,l} is the return from turn i on (Sutton and Barto, Reinforcement Learning,
    equation 3.8). e_{j,l} are the events of the reward in turn l; what the reward pays besides its events is paid at the
    last turn. Returns are compared turn by turn, as in MT-GRPO (arXiv 2505.11821, section 4).

    b is the mean of G_{k,i} over the other trajectories k that have a turn i; where none has, the mean of the others'
    returns from their last turns. The others are those that do not pass through the token's node. So b depends on
    nothing that the token decides, the end of the trajectory included: with a mean that holds the trajectory's own
    return, the gradient of a turn shrinks by 1 - 1/m, and m, how many come so far, is up to the policy. A token above
    all leaves gets 0.

    std_i is the standard deviation (with Bessel's correction) over the group of the returns from turn i, or from the last
    turn of a trajectory that ended before; `scale = "none"` does not divide. With `shared = "mass"` means and deviations
    weigh each leaf by its mass.

    Without events and with a discount of 1 the first turn has the advantage of `group` with `leave_subtree_out`.
    """

    shared: Shared

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return the advantage of each token of each trajectory. [G][T]"""
        del statistics
        values(tree.rewards)
        trajectories = tree.tree.trajectories
        turns = [_turns(trajectory) for trajectory in trajectories]
        returns = [
            _returns(ids, reward, self.discount) for ids, reward in zip(turns, tree.rewards, strict=True)
        ]
        masses = leaf_weights(tree.tree, self.shared)
        columns = [
            _Turn.of(returns, masses, turn, self.scale) for turn in range(max(map(len, returns), default=0))
        ]
        turn_of = {node: turn for ids in turns for turn, nodes in enumerate(ids) for node in nodes}
        below = leaves_below(tree.tree)
        gains = {node: columns[turn].gains(below[node]) for node, turn in turn_of.items()}

        def of(index: int, node: Node) -> Floats:
            return np.full(len(node.token_ids), gains[node.id][index])

        return tuple(
            along(trajectory, lambda node, index=index: of(index, node))  # type: ignore[misc]
            for index, trajectory in enumerate(trajectories)
        )


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of all trajectories. [G] each

    Attributes:
        returns: From this turn on, or from the last one of a trajectory that ended before.
        masses: Weights in means; 0 for a trajectory without any turn.
        have: Whether the trajectory has this turn.
        scale: What differences are divided by.
    """

    returns: Floats
    masses: Floats
    have: npt.NDArray[np.bool_]
    scale: float

    @classmethod
    def of(cls, returns: Sequence[Floats], masses: Floats, turn: int, scale: str) -> "_Turn":
        """Take one turn from the returns of all trajectories."""
        column = np.array([each[min(turn, len(each) - 1)] if len(each) else 0.0 for each in returns])
        spoke = np.array([len(each) > 0 for each in returns])
        divisor = 1.0 if scale == "none" else spread_of(column[spoke], masses[spoke]) + STD_FLOOR
        return cls(column, masses * spoke, np.array([len(each) > turn for each in returns]), divisor)

    def gains(self, below: Ints) -> Floats:
        """Return the advantages that the trajectories `below` a node have at its tokens. [G]"""
        others = self.masses.copy()
        others[below] = 0
        if (others * self.have).any():
            others *= self.have
        compared = self.returns[(others > 0) | np.isin(np.arange(len(others)), below)]
        # Equal returns give exactly 0, without rounding errors.
        if not others.any() or compared.min() == compared.max():
            return np.zeros_like(self.returns)
        gains: Floats = (self.returns - np.average(self.returns, weights=others)) / self.scale
        return gains


def _turns(trajectory: Trajectory) -> list[list[str]]:
    """Return the policy's turns, which are the runs of its nodes: for each the ids of the nodes."""
    runs = groupby(trajectory.nodes, lambda node: node.source)
    return [[node.id for node in run] for source, run in runs if source is Source.POLICY]


def _returns(turns: Sequence[Sequence[str]], reward: Reward, discount: float) -> Floats:
    """Return the return from each turn on."""
    earned = [sum(reward.events.get(node, 0.0) for node in turn) for turn in turns]
    if earned:
        earned[-1] += reward.value - sum(earned)
    returns = np.array(earned, dtype=np.float64)
    for turn in reversed(range(len(returns) - 1)):
        returns[turn] += discount * returns[turn + 1]
    return returns
