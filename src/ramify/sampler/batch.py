"""Which problems a step learns from: the next ones in data order, or only those with differing rewards (DAPO)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ramify.core.protocols import Json
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, TreeKey
from ramify.data.order import DataCursor, ProblemOrder
from ramify.obs.console import Phase
from ramify.rollout.plan import step_requests
from ramify.sampler.configs import DynamicSamplingConfig
from ramify.sampler.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Batch:
    """The trees of one step, in data order.

    Attributes:
        trees: All trees that were grown.
        refused: Keys of those that the step does not learn from: problems that failed, and what dynamic sampling refuses.
        attempts: Number of rounds of growing.
        cursor: Place in the data after the last problem taken, whether kept or refused.
        branching: State of the branching rule after the last tree.
        policy_version: Version of the weights that the engine had when the step began.
    """

    trees: tuple[ScoredTree, ...]
    refused: frozenset[TreeKey]
    attempts: int
    cursor: DataCursor
    branching: Mapping[str, Json] = field(default_factory=dict)
    policy_version: int = 0

    @property
    def accepted(self) -> tuple[ScoredTree, ...]:
        """Return the trees that the step learns from."""
        return tuple(scored for scored in self.trees if scored.tree.key not in self.refused)

    @property
    def metrics(self) -> dict[str, float]:
        """Refused trees, the tokens that the policy wrote in them, rounds, and whether no tree was kept."""
        refused = [scored.tree for scored in self.trees if scored.tree.key in self.refused]
        tokens = [
            len(node.token_ids) for tree in refused for node in tree.nodes if node.source is Source.POLICY
        ]
        return {
            "sampling/refused": float(len(refused)),
            "sampling/refused_tokens": float(sum(tokens)),
            "sampling/attempts": float(self.attempts),
            "sampling/empty": float(not self.accepted),
        }


async def take_batch(
    sampler: Sampler,
    order: ProblemOrder,
    size: int,
    dynamic: DynamicSamplingConfig | None,
    cursor: DataCursor,
    step: int,
    phase: Phase,
) -> Batch:
    """Grow the trees of one step: one for each of the next `size` problems in data order.

    With `dynamic`, more rounds follow until `size` trees hold both right and wrong answers (DAPO, arXiv 2503.14476,
    equation 11), or until `max_attempts` rounds. Each round takes as many problems as are missing and waits for all of
    them, so the order of the data decides which trees are used, not their speed. A tree's key holds its place among the
    problems of the step and its round.
    """
    trees: list[ScoredTree] = []
    refused: set[TreeKey] = set()
    attempts = 0
    # Without dynamic sampling one round: a problem that failed is not replaced, so a step always takes `size` of the data.
    while attempts < (dynamic.max_attempts if dynamic else 1) and (
        missing := size - len(trees) + len(refused)
    ):
        indices, cursor = order.take(cursor, missing)
        problems = [sampler.task.problems[index] for index in indices]
        planned = step_requests(problems, step, first_slot=len(trees), attempt=attempts)
        grown = await sampler.grow(planned, phase)
        trees.extend(grown)
        refused.update(
            scored.tree.key
            for scored in grown
            if scored.tree.has_failed or (dynamic is not None and not is_mixed(scored.rewards))
        )
        attempts += 1
    rule = sampler.agent.brancher.state()
    return Batch(tuple(trees), frozenset(refused), attempts, cursor, rule, policy_version=step)


def is_mixed(rewards: Sequence[Reward]) -> bool:
    """Return True if some leaves of a tree are better than others by `correct`: 1 or more is right, 0 or less is wrong.

    Equal partial credit on all leaves does not count as mixed either. Leaves that do not count are left out.
    """
    correct = {min(max(reward.parts["correct"], 0.0), 1.0) for reward in rewards if reward.counts}
    return len(correct) > 1
