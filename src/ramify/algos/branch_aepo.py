"""AEPO's rollout (arXiv 2510.14545): a budget split by a monitored trajectory, and a penalty on consecutive branches.

Split: m = n sigmoid(beta (H_root - H_tool)) trajectories start from the prompt, the rest are branches. H_root is the
entropy of the first k tokens of the monitored trajectory, H_tool the mean entropy of the k tokens after each of its
tool results. The monitored trajectory is root 0 and counts as one of the n, so it costs nothing extra. As m depends on
it, there is a small bias, which `shared = "mass"` does not remove.

Penalty: P = (alpha + gamma dH) (1 - slope l). l is the number of consecutive tool results just before this one on the
same path at which entropy rose and a branch was wanted. The paper branches where P > tau.

Entropies are means in nats per token. beta = 0.84 and gamma = 0.335 correspond to the release's 0.5 and 0.2, which
apply to sums over 20 tokens divided by ln V.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Literal

from ramify.algos.branch_arpo import clip
from ramify.algos.branch_rules import BranchingConfig, Memoryless, RuleSetup, require_at_least_one, toss
from ramify.core.config import Fraction, SignedWeight, Weight
from ramify.core.protocols import Brancher
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, Source, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedConfig(BranchingConfig):
    """AEPO: a monitored trajectory splits the budget (leave out `rollout.m`), and consecutive branches become rarer.

    Attributes:
        alpha: Probability of a branch where entropy did not change.
        gamma: Weight of the entropy delta, per nat.
        slope: Fraction of the probability that each consecutive branch takes off.
        draw: "threshold" (paper) branches if P > tau, "bernoulli" (release) with probability P.
        tau: 0.5 by default with a threshold, None with a draw.
        budget_beta: Weight of H_root - H_tool in the split, per nat.
    """

    name: Literal["balanced"] = "balanced"
    alpha: Fraction = 0.5
    gamma: SignedWeight = 0.335
    slope: Fraction = 0.05
    draw: Literal["threshold", "bernoulli"] = "threshold"
    tau: Fraction | None = None
    budget_beta: Weight = 0.84

    def __post_init__(self) -> None:
        if self.draw == "bernoulli" and self.tau is not None:
            raise ValueError('tau: has no effect without draw = "threshold". Remove it.')

    @property
    def needs_m(self) -> bool:
        """False: the rule computes m."""
        return False

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        del setup
        return BalancedBrancher(**self.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedBrancher(Memoryless, BalancedConfig):
    """Entropy-balanced branching; without tau it branches with probability P."""

    @property
    def num_monitor(self) -> int:
        """1: the number of roots is known once root 0 has ended."""
        return 1

    @property
    def max_children(self) -> int:
        """Z."""
        return self.children

    @property
    def keeps_slot_order(self) -> bool:
        """False: the roots are served in random order."""
        return False

    def first_roots(self, n: int) -> int:
        """Return a quarter of n, the smallest m that the split may choose, so that root 0 does not run alone.

        Raises:
            ConfigError: n is below 1.
        """
        require_at_least_one(n=n)
        return max(1, n // 4)

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """Return m = clip(round(n sigmoid(budget_beta (H_root - H_tool))), first_roots, n); n if there was no result and no reply.

        Raises:
            ConfigError: n is below 1.
        """
        least = self.first_roots(n)
        entropies = monitored_entropies(monitor[0])
        if not entropies.root or not entropies.after_results:
            return n
        # Unsure from the start: more trajectories from the prompt. Unsure after results: more of the n are left for branches.
        gap = entropies.root[0].lower - mean_lower(entropies.after_results)
        return min(max(round(n * sigmoid(self.budget_beta * gap)), least), n)

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the entropy delta, less the penalty for consecutive branches on this path."""
        left = max(0.0, 1 - self.slope * steps_in_a_row(history))
        # `level` is what the rule does where entropy stays: the metrics tell by it whether entropy decides anything.
        chance, level = (
            clip((self.alpha + self.gamma * delta) * left) for delta in (candidate.entropy_delta, 0.0)
        )
        if self.tau is None:
            return toss(self.children, chance, level, candidate.draw)
        branch = chance > self.tau
        return Proposal(self.children if branch else 0, float(branch), branch != (level > self.tau))


@dataclass(frozen=True, slots=True)
class MonitoredEntropies:
    """Entropies of a trajectory's first turn (empty if that was cut off early), and of its turns after results or replies.

    These are the places where the rule decides.
    """

    root: tuple[Entropy, ...]
    after_results: tuple[Entropy, ...]


def monitored_entropies(trajectory: Trajectory) -> MonitoredEntropies:
    """Collect them from a trajectory; where a turn is stored in two nodes, only the first one has an entropy."""
    root, after_results = [], []
    for above, node in pairwise(trajectory.nodes):
        if node.source is Source.POLICY and node.entropy is not None:
            if above.source is Source.PROMPT:
                root.append(node.entropy)
            elif above.results or above.messages:
                after_results.append(node.entropy)
    return MonitoredEntropies(tuple(root), tuple(after_results))


def steps_in_a_row(history: Sequence[BranchDecision]) -> int:
    """Return l, the length of the run of latest decisions on the path at which entropy rose and a branch was wanted."""
    return sum(
        1 for _ in takewhile(lambda step: step.planned > 0 and step.entropy_delta > 0, reversed(history))
    )


def mean_lower(entropies: Sequence[Entropy]) -> float:
    """Return the mean of the lower bounds of the entropies; all rules compare lower bounds."""
    return math.fsum(entropy.lower for entropy in entropies) / len(entropies)


def sigmoid(value: float) -> float:
    """Return 1 / (1 + exp(-value)), without overflow."""
    return 0.5 * (1 + math.tanh(value / 2))
