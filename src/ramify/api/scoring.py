"""`score` and `credit`: rewards for grown trees, and what each token is credited with, by the functions of training."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ramify.api.policy import Policy
from ramify.api.session import in_thread, run
from ramify.api.tables import algorithm_section, require, reward_table
from ramify.api.trees import Tree, Trees, as_trees, with_rewards
from ramify.assemble.recorded_credit import RecordedAlgorithm
from ramify.config.load import check_recipe
from ramify.config.schema_parts import RewardSection, Section
from ramify.core.errors import ConfigError
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Tree as CoreTree
from ramify.obs.trace import TracedTree
from ramify.runtime.agent_loop import abandon


class _RewardTable(Section):
    """The reward of a recipe."""

    reward: RewardSection


def reward_section(reward: Any, what: str) -> RewardSection:  # noqa: ANN401 - whatever stands for a reward
    """Return the checked reward; `what` begins the message.

    Raises:
        ConfigError: It is none.
    """
    return check_recipe(_RewardTable, {"reward": reward_table(reward)}, what).reward


def score(trees: Trees | Tree | Iterable[Tree], reward: Any) -> Trees:  # noqa: ANN401 - whatever stands for a reward
    """Return the trees with rewards.

    Args:
        trees: Of a rollout or of a run.
        reward: A name, an object of `ramify.rewards`, a function, a pair (function, weight), or a list of these.

    Raises:
        ConfigError: The reward cannot be used.
        DataError: It failed on a trajectory, or returned no number; names the function and its line.
    """
    from ramify.assemble.reward import build_reward

    listed = as_trees(trees, "score")
    built = build_reward(reward_section(reward, "score"))

    async def score_all() -> list[ScoredTree]:
        tasks = [asyncio.ensure_future(_score(built.fn, tree.core)) for tree in listed]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            # Where one has failed, the others would go on calling the user's function.
            for task in tasks:
                abandon(task)
            await built.close()

    scored = run(score_all())
    return Trees(with_rewards(tree, each.rewards) for tree, each in zip(listed, scored, strict=True))


async def score_async(trees: Trees | Tree | Iterable[Tree], reward: Any) -> Trees:  # noqa: ANN401
    """As `score`, in a thread."""
    result: Trees = await in_thread(score, trees, reward)
    return result


async def _score(function: Any, tree: CoreTree) -> ScoredTree:  # noqa: ANN401 - a reward function
    from ramify.rewards.trajectory_rewards import score_tree

    if tree.has_failed:
        return ScoredTree(tree, (Reward(0.0, {}, counts=False),) * len(tree.trajectories))
    return await score_tree(function, tree)


def credit(
    trees: Trees | Tree | Iterable[Tree],
    algorithm: Any = "arpo",  # noqa: ANN401 - a name, an object or a table
    policy: Policy | None = None,
) -> Trees:
    """Return the scored trees with the advantages and the credit (S+, S-, W) that an update would give each token.

    Args:
        trees: With rewards.
        algorithm: A name or an object of `ramify.algorithms`.
        policy: For algorithms that need values of the model: a KL penalty, annotated entropies, recomputed logprobs.

    Raises:
        ConfigError: The algorithm needs the policy, or cannot be used.
        DataError: The trees have no rewards.
    """
    listed, section = as_trees(trees, "credit"), algorithm_section(algorithm)
    require(policy, Policy | None, "credit: policy: expected a ramify.Policy")
    learned = Trees(tree for tree in listed if tree.is_learned)
    if policy is None:
        recorded = [TracedTree(each.tree, each.rewards) for each in learned.scored]
        own = RecordedAlgorithm("credit", section, runs_file=True)
        if reason := own.obstacle(recorded):
            first = reason.partition(". ")[0]
            raise ConfigError(
                f"credit: {first}. Name the policy that has it: credit(trees, algorithm, policy)"
            )
        credited = iter(own.credit(recorded).trees)
    else:
        credited = iter(policy.credit(learned, section))
    return Trees(replace(tree, credit=next(credited) if tree.is_learned else None) for tree in listed)


async def credit_async(
    trees: Trees | Tree | Iterable[Tree],
    algorithm: Any = "arpo",  # noqa: ANN401
    policy: Policy | None = None,
) -> Trees:
    """As `credit`, in a thread."""
    result: Trees = await in_thread(credit, trees, algorithm, policy)
    return result
