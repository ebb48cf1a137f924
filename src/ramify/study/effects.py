"""Effects of decisions: the mean reward of those that go on after a turn, minus that of those that go on from before it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ramify.core.json_types import count, mapping, number, numbers, optional, record, text
from ramify.eval.statistics import Interval

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Side:
    """Resampled trajectories from a node.

    Attributes:
        node: Id of the node.
        rewards: Of those that count.
        unknown: Number of those that do not: the world failed, or could not be brought back to the node.
    """

    node: str
    rewards: tuple[float, ...]
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """A decision with what was resampled on both sides of it.

    Attributes:
        trace: The file of trees.
        row: The tree's place in it, from 0; conversations of one problem are a tree.
        line: The line of the file that holds the turn, from 1.
        node: Id of the node that ends the turn.
        problem: Id of the problem.
        turn: Number of the turn on its path, from 1.
        before: The trajectories that go on from before the turn.
        after: Those that go on after it; None: the turn ended the trajectory.
        reward: The reward of the recorded end where `after` is None; None: it is not known, or the turn did not end it.
        entropy: Entropy at the decision, nats; None: not recorded.
        text: The beginning of the turn.
        credits: What each estimator credits the turn with, its mean advantage, by the estimator's name; and a judge's opinion.
    """

    trace: str
    row: int
    line: int
    node: str
    problem: str
    turn: int
    before: Side
    after: Side | None
    reward: float | None
    entropy: float | None
    text: str
    credits: Mapping[str, float]

    @property
    def is_known(self) -> bool:
        """True if at least two trajectories count on each side that was resampled, and the reward of an end is known."""
        return (self.after is not None or self.reward is not None) and all(
            len(side.rewards) >= 2 for side in (self.before, self.after) if side is not None
        )

    def interval(self, least: float, most: float) -> Interval:
        """Return the effect with its 95 % interval, for rewards from `least` to `most`; see `effect_interval`."""
        return effect_interval(self.before.rewards, self._after, least, most)

    @property
    def variance(self) -> float:
        """Estimate of the variance of the measured effect about the true one."""
        sides = [self.before.rewards] + ([] if self.after is None else [self.after.rewards])
        return float(sum(np.var(side, ddof=1) / len(side) for side in sides))

    @property
    def value(self) -> float:
        """The measured effect."""
        after = self._after
        mean = after if isinstance(after, float) else float(np.mean(after))
        return mean - float(np.mean(self.before.rewards))

    @property
    def _after(self) -> tuple[float, ...] | float:
        if self.after is not None:
            return self.after.rewards
        assert self.reward is not None
        return self.reward

    def record(self, least: float, most: float) -> dict[str, Any]:
        """Return a line of effects.jsonl."""
        interval = self.interval(least, most) if self.is_known else None
        # Where all rewards are equal nobody knows what others there could be.
        ends = (None, None) if interval is None or least == most else (interval.low, interval.high)
        return {
            "trace": self.trace,
            "row": self.row,
            "line": self.line,
            "node": self.node,
            "problem": self.problem,
            "turn": self.turn,
            "effect": None if interval is None else interval.value,
            "low": ends[0],
            "high": ends[1],
            "before": _side_record(self.before),
            "after": None if self.after is None else _side_record(self.after),
            "reward": self.reward,
            "entropy": self.entropy,
            "text": self.text,
            "credits": dict(self.credits),
        }


def _side_record(side: Side) -> dict[str, Any]:
    return {"node": side.node, "rewards": list(side.rewards), "unknown": side.unknown}


_READ_SIDE = record(Side, node=text, rewards=numbers, unknown=count)


_READ_EFFECT = record(
    Effect,
    trace=text,
    row=count,
    line=count,
    node=text,
    problem=text,
    turn=count,
    before=_READ_SIDE,
    after=optional(_READ_SIDE),
    reward=optional(number),
    entropy=optional(number),
    text=text,
    credits=mapping(number),
)
_MEASURED = ("effect", "low", "high")
"""Fields of a line that follow from the others."""


def read_effect(line: Mapping[str, Any]) -> Effect:
    """Read a line of effects.jsonl.

    Raises:
        FieldError: It is none.
    """
    return _READ_EFFECT({key: value for key, value in line.items() if key not in _MEASURED})


def reward_range(effects: Sequence[Effect]) -> tuple[float, float]:
    """Return the least and the greatest reward of the trajectories of an audit; (0, 0) if there is none."""
    sides = [side for effect in effects for side in (effect.before, effect.after) if side is not None]
    rewards = [reward for side in sides for reward in side.rewards]
    rewards += [effect.reward for effect in effects if effect.reward is not None]
    return (min(rewards), max(rewards)) if rewards else (0.0, 0.0)


def effect_interval(
    before: Sequence[float], after: Sequence[float] | float, least: float, most: float
) -> Interval:
    """Return mean(after) - mean(before) and its 95 % interval; `n` is the number of trajectories.

    Four made-up rewards are added, as many at `least` as at `most`, and the interval is the normal one of what results. With
    rewards 0 and 1 that is the interval of Agresti and Caffo (2000), one of each value on each side; and where `after` is a
    number that is known, and only `before` was resampled, that of Agresti and Coull (1998), two of each value. Neither
    breaks down, as the plain interval does, where all rewards of a side are equal. For other rewards the made-up ones make
    it wider, never narrower than the range of the rewards allows.

    Args:
        before: At least two rewards.
        after: At least two rewards, or a known one.
        least: Least reward of the world.
        most: Greatest reward of the world.
    """
    value = float(np.mean(after)) - float(np.mean(before))
    if isinstance(after, float | int):
        mean, variance = _smoothed(before, least, most, 2)
        middle, half = after - mean, _Z * math.sqrt(variance)
        low, high, n = after - most, after - least, len(before)
    else:
        (first, first_variance), (second, second_variance) = (
            _smoothed(side, least, most, 1) for side in (before, after)
        )
        middle, half = second - first, _Z * math.sqrt(first_variance + second_variance)
        low, high, n = least - most, most - least, len(before) + len(after)
    return Interval(value, max(low, middle - half), min(high, middle + half), n)


def _smoothed(rewards: Sequence[float], least: float, most: float, times: int) -> tuple[float, float]:
    """Return the mean, and its variance, of rewards to which the ends of their range were added `times` times each."""
    values = np.array([*rewards, *(least, most) * times], dtype=np.float64)
    return float(values.mean()), float(values.var() / len(values))
