"""Evaluation: independent attempts at each problem with the agent of training, never branching."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ramify.core.messages import Problem
from ramify.core.protocols import RewardFn
from ramify.core.tree import StopReason, Tree
from ramify.eval.intervals import Interval, bootstrap_mean
from ramify.eval.pass_at_k import tree_pass_at_k
from ramify.obs.trace import TracedTree
from ramify.rewards.scoring import score_tree
from ramify.rollout.grow import grow_trees
from ramify.rollout.settings import AgentParts


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory at a problem."""

    correct: bool
    stop: StopReason
    num_calls: int
    num_written: int


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """All attempts at one problem, with its unbiased pass@k for each k that was asked for."""

    id: str
    kind: str
    attempts: tuple[Attempt, ...]
    pass_at: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results in the order of the problems, and the attempts themselves."""

    results: tuple[ProblemResult, ...]
    traced: tuple[TracedTree, ...]
    seed: int

    def pass_at(self, k: int, kind: str | None = None) -> Interval:
        """Mean pass@k over problems (of one kind) with its 95 % bootstrap interval."""
        values = [r.pass_at[k] for r in self.results if kind is None or r.kind == kind]
        return bootstrap_mean(values, self.seed)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of problem, sorted."""
        return tuple(sorted({result.kind for result in self.results}))

    @property
    def calls_per_attempt(self) -> float:
        """Mean number of executed tool calls."""
        attempts = [attempt for result in self.results for attempt in result.attempts]
        return sum(attempt.num_calls for attempt in attempts) / len(attempts)


async def evaluate(
    agent: AgentParts,
    reward: RewardFn,
    problems: Sequence[Problem],
    ks: Sequence[int],
    on_tree: Callable[[Tree], None] | None = None,
) -> Evaluation:
    """Attempt every problem `agent.limits.n` times and count the correct answers.

    An attempt is correct when the reward's part `correct` is 1 (all of it: partial credit does not count).

    Args:
        agent: With a brancher that never branches.
        reward: Reports a part `correct`.
        problems: What to attempt; `info["kind"]` names a problem's kind.
        ks: Values of k, each at most the number of attempts.
        on_tree: Called with each problem's trajectories as soon as they are whole.

    Raises:
        DataError: A reward is no number.
    """
    trees = await grow_trees(agent, problems, step=0, on_tree=on_tree)
    traced = tuple([TracedTree(tree, await score_tree(reward, tree)) for tree in trees])
    return Evaluation(tuple(_result(each, ks) for each in traced), traced, agent.run_seed)


def _result(traced: TracedTree, ks: Sequence[int]) -> ProblemResult:
    tree = traced.tree
    attempts = tuple(
        Attempt(
            given.parts.get("correct", 0.0) >= 1.0,
            trajectory.stop,
            len(trajectory.exchanges),
            trajectory.num_written,
        )
        for trajectory, given in zip(tree.trajectories, traced.rewards, strict=True)
    )
    correct = [attempt.correct for attempt in attempts]
    return ProblemResult(
        tree.problem.id,
        str(tree.problem.info.get("kind", "all")),
        attempts,
        {k: tree_pass_at_k(tree, correct, k) for k in ks},
    )
