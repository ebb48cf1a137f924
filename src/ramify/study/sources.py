"""Recorded trees whose decisions are audited, and the rewards that their ends get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramify.core.errors import ConfigError
from ramify.core.records import Reward
from ramify.obs.trace import TracedTree
from ramify.study.credits import credit_of, estimator_credits
from ramify.study.decisions import Decision, decisions_of, draw_decisions
from ramify.study.effects import Effect, Side
from ramify.study.forks import State


@dataclass(frozen=True, slots=True)
class Rescoring:
    """The recorded ends that the recipe's reward scored again.

    Attributes:
        n: Their number.
        changed: Those whose reward differs from the recorded one.
        unknown: Those that could not be scored.
        recorded: Mean recorded reward of the others.
        mean: Their mean reward.
    """

    n: int
    changed: int
    unknown: int
    recorded: float
    mean: float

    def __str__(self) -> str:
        """For people."""
        unknown = f"; {self.unknown} more could not be scored" if self.unknown else ""
        return (
            f"the recipe's reward scored {self.n} recorded ends again, so that both sides of an effect have one scale: mean "
            f"{self.mean:.3f}, recorded {self.recorded:.3f}, {self.changed} differ{unknown}"
        )


@dataclass(frozen=True)
class Sources:
    """Recorded trees whose decisions are audited: one entry for each file.

    Attributes:
        names: The files.
        trees: Their trees.
        lines: Of files of conversations, by tree, the line of each conversation, from 1; empty: a tree is a line.
    """

    names: tuple[str, ...]
    trees: tuple[Sequence[TracedTree], ...]
    lines: tuple[Sequence[Sequence[int]], ...] = ()

    def draw(self, count: int, seed: int) -> tuple[Decision, ...]:
        """Return a draw of `count` decisions, fewer if there are not as many.

        Raises:
            ConfigError: There is none.
        """
        every = [
            decision
            for trace, trees in enumerate(self.trees)
            for row, traced in enumerate(trees)
            for decision in decisions_of(traced, trace, row)
        ]
        if not every:
            raise ConfigError(f"{', '.join(self.names)}: no turn of a policy that could be resampled")
        return draw_decisions(every, count, seed)

    def rescored(self, rewards: Sequence[Mapping[State, Reward]]) -> tuple["Sources", Rescoring]:
        """Return the trees with other rewards, for each file by the row of the tree and the id of the leaf."""
        pairs, files = [], []
        for trees, of_file in zip(self.trees, rewards, strict=True):
            rows = {row for row, _ in of_file}
            again = list(trees)
            for row in rows:
                again[row] = _with_rewards(trees[row], row, of_file)
                pairs += [
                    (old.value, new.value)
                    for old, new in zip(trees[row].rewards, again[row].rewards, strict=True)
                    if new.counts
                ]
            files.append(again)
        recorded, new = (float(np.mean([pair[side] for pair in pairs])) if pairs else 0.0 for side in (0, 1))
        changed = sum(abs(old - now) > 1e-9 for old, now in pairs)
        unknown = sum(not reward.counts for of_file in rewards for reward in of_file.values())
        return Sources(self.names, tuple(files), self.lines), Rescoring(
            len(pairs), changed, unknown, recorded, new
        )

    def ends(self, decisions: Sequence[Decision], trace: int) -> list[State]:
        """Return the ends of the trees of a file that decisions are from."""
        rows = dict.fromkeys(each.row for each in decisions if each.trace == trace)
        return [
            (row, each.leaf.id)
            for row in rows
            for each, reward in zip(
                self.trees[trace][row].tree.trajectories, self.trees[trace][row].rewards, strict=True
            )
            if reward.counts
        ]

    def effects(
        self,
        decisions: Sequence[Decision],
        sides: Sequence[Mapping[State, Side]],
        others: Mapping[str, Sequence[float | None]],
    ) -> tuple[Effect, ...]:
        """Return the effects of decisions, with estimators' credit.

        Args:
            decisions: The decisions.
            sides: For each file what was resampled from its states.
            others: Further scores of each decision, by name; None: it has none.
        """
        credits = {
            trace: estimator_credits(self.trees[trace]) for trace in {each.trace for each in decisions}
        }
        return tuple(
            self._effect(
                each,
                sides[each.trace],
                credits[each.trace],
                {name: scores[number] for name, scores in others.items()},
            )
            for number, each in enumerate(decisions)
        )

    def _effect(
        self,
        decision: Decision,
        sides: Mapping[State, Side],
        credits: Mapping[str, Sequence[Any]],
        others: Mapping[str, float | None],
    ) -> Effect:
        row, trees = decision.row, self.trees[decision.trace]
        own = {name: credit_of(decision, of_estimator[row]) for name, of_estimator in credits.items()}
        return Effect(
            trace=self.names[decision.trace],
            row=row,
            line=self._line(decision),
            node=decision.node,
            problem=decision.problem,
            turn=decision.turn,
            before=sides[row, decision.before],
            after=None if decision.after is None else sides[row, decision.after],
            reward=None if decision.after is not None else _reward_at(trees[row], decision.node),
            entropy=decision.entropy,
            text=decision.text,
            credits={name: score for name, score in {**own, **others}.items() if score is not None},
        )

    def _line(self, decision: Decision) -> int:
        if not self.lines:
            return decision.row + 1
        # A conversation is a branch at the prompt.
        return self.lines[decision.trace][decision.row][int(decision.node.partition(".")[0])]


def _with_rewards(traced: TracedTree, row: int, rewards: Mapping[State, Reward]) -> TracedTree:
    """Return a tree with other rewards; a trajectory without one did not count before."""
    pairs = zip(traced.tree.trajectories, traced.rewards, strict=True)
    return replace(
        traced, rewards=tuple(rewards.get((row, trajectory.leaf.id), old) for trajectory, old in pairs)
    )


def _reward_at(traced: TracedTree, leaf: str) -> float | None:
    """Return the reward of the trajectory that ends at a leaf; None: it does not count."""
    leaves = [trajectory.leaf.id for trajectory in traced.tree.trajectories]
    reward = traced.rewards[leaves.index(leaf)]
    return reward.value if reward.counts else None
