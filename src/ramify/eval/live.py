"""Evaluates a live sampler: independent attempts at problems, without files or an engine of its own."""

from collections.abc import Sequence

from ramify.core.messages import Problem
from ramify.core.records import ScoredTree
from ramify.core.tree import TreeKey
from ramify.eval.evaluation import Evaluation, make_evaluation
from ramify.eval.results import AttemptRecord, record_attempt
from ramify.obs.console import Phase
from ramify.rollout.plan import TreeRequest
from ramify.runs.keyed_lines import Key
from ramify.sampler.recorded import grow_in_groups, in_groups
from ramify.sampler.sampler import Sampler


def planned_attempts(problems: Sequence[Problem], attempts: int) -> tuple[TreeRequest, ...]:
    """Return all attempts; those at one problem are adjacent, so that the engine can reuse the prompt's cache."""
    return tuple(
        TreeRequest(problem, TreeKey(step=number, slot=slot))
        for slot, problem in enumerate(problems)
        for number in range(attempts)
    )


def attempt_key(planned: TreeRequest) -> Key:
    """Return the key of an attempt's lines."""
    return planned.problem.id, planned.key.step


async def evaluate(
    sampler: Sampler,
    problems: Sequence[Problem],
    attempts: int,
    phase: Phase,
    *,
    decides: str = "correct",
    group_size: int | None = None,
) -> tuple[Evaluation, tuple[ScoredTree, ...]]:
    """Make `attempts` at each problem; returns the scores, and the trees in the order of `planned_attempts`.

    Args:
        sampler: Grows trees of one trajectory; its weights and its engine stay as they are.
        problems: The problems.
        attempts: Independent attempts at each.
        phase: Shows the progress, and what the rollout is waiting for.
        decides: Part of the reward that says whether an attempt is right.
        group_size: Attempts that must be made together; None: each can be made alone.

    Raises:
        DataError: Problem after problem failed, and none worked.
        EngineError: The engine broke its contract.
    """
    trees: dict[TreeKey, ScoredTree] = {}
    records: list[AttemptRecord] = []

    async def keep(scored: ScoredTree, seconds: float) -> None:
        del seconds
        (reward,) = scored.rewards
        trees[scored.tree.key] = scored
        records.append(record_attempt(scored.tree, reward, decides))
        phase.advance(1)

    planned = planned_attempts(problems, attempts)
    groups = in_groups(planned, group_size)
    await grow_in_groups(sampler, groups, keep, phase, whole=group_size is not None)
    ids = [problem.id for problem in problems]
    evaluation = make_evaluation(records, ids, attempts, sampler.agent.run_seed)
    return evaluation, tuple(trees[each.key] for each in planned)
