"""Scores grown trees. A problem that cannot be scored has failed; only if no problem ever works, the run ends."""

from dataclasses import dataclass, replace

from ramify.core.errors import ContentError, DataError
from ramify.core.protocols import RewardFn
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import StopReason, Tree
from ramify.obs.metrics import TimingLog
from ramify.rewards.trajectory_rewards import score_tree
from ramify.rollout.plan import content_errors, report_failed_problem

FAILURES_TO_STOP = 8
"""After so many failed problems and none that worked, the mistake is not in one problem."""


@dataclass(slots=True)
class Scoring:
    """Scores the trees of a session.

    Attributes:
        reward: The reward function.
        timing: Gets an event for each problem that failed, and knows the reasons.
        num_worked: Number of problems that did not fail.
    """

    reward: RewardFn
    timing: TimingLog
    num_worked: int = 0

    async def score(self, tree: Tree) -> ScoredTree:
        """Return the tree with its rewards; if it has failed, or cannot be scored, with rewards of 0 that do not count.

        Raises:
            DataError: `FAILURES_TO_STOP` problems failed, and none worked.
        """
        if not tree.has_failed:
            try:
                with content_errors("the reward"):
                    scored = await score_tree(self.reward, tree)
            except ContentError as error:
                report_failed_problem(self.timing, tree.key, tree.problem, str(error))
                tree = _failed(tree)
            else:
                self.num_worked += 1
                return scored
        if len(self.timing.failed_problems) >= FAILURES_TO_STOP:
            self.require_success()
        return ScoredTree(tree, (Reward(0.0, {}, counts=False),) * len(tree.trajectories))

    def require_success(self) -> None:
        """Raise DataError if problems failed and none worked."""
        failed = self.timing.failed_problems
        if failed and not self.num_worked:
            raise DataError(f"none of {len(failed)} problems worked; the first: {failed[0]}")


def _failed(tree: Tree) -> Tree:
    """Return the tree with every trajectory failed: without a reward it says nothing about the policy."""
    nodes = tuple(node if node.stop is None else replace(node, stop=StopReason.FAILED) for node in tree.nodes)
    return replace(tree, nodes=nodes)
