"""AEPO's rollout (arXiv 2510.14545): a budget split by a monitored trajectory, and a penalty on branches in a row.

Split: m = n sigmoid(beta (H_root - H_tool)) trajectories start from the prompt, the rest are branches. H_root is
the entropy of the first k tokens of the monitored trajectory, H_tool the mean of that after each of its tool results.
The monitored trajectory is root 0 and one of the n, so it costs nothing; that m depends on it is a small bias which
`shared = "mass"` does not remove.

Penalty: P = (alpha + gamma dH) (1 - slope l), with l the number of consecutive tool results just before this one,
on this path, at which entropy rose and a branch was wanted. The paper branches where P > tau.

Entropies are means in nats per token. beta 0.84 and gamma 0.335 are the release's 0.5 and 0.2 on its sums of 20 tokens
divided by ln V.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from ramify.algos.branch_arpo import clip, toss
from ramify.algos.branch_roots import Memoryless, require_at_least_one
from ramify.core.errors import ConfigError
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, Source, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedBrancher(Memoryless):
    """Entropy-balanced branching.

    Attributes:
        alpha: Chance of a branch where entropy did not change.
        gamma: Weight of the rise, per nat.
        slope: What each step of a run of branches takes off the chance, in [0, 1].
        tau: Branch where P exceeds it, as in the paper; None: branch with probability P, as the release does.
        budget_beta: Weight of H_root - H_tool in the split, per nat, at least 0.
        children: Z.
        probe_tokens: k.

    Raises:
        ConfigError: A number that is out of its range.
    """

    alpha: float
    gamma: float
    slope: float
    tau: float | None
    budget_beta: float
    children: int
    probe_tokens: int

    def __post_init__(self) -> None:
        require_at_least_one(children=self.children, probe_tokens=self.probe_tokens)
        if not 0 <= self.slope <= 1:
            raise ConfigError(f"branching: slope = {self.slope}, expected a number from 0 to 1")
        if self.budget_beta < 0:
            raise ConfigError(f"branching: budget_beta = {self.budget_beta}, expected at least 0")

    @property
    def num_monitor(self) -> int:
        """The number of roots is known when root 0 has ended."""
        return 1

    @property
    def max_children(self) -> int:
        """Z."""
        return self.children

    @property
    def keeps_slot_order(self) -> bool:
        """The order of the roots is drawn."""
        return False

    def first_roots(self, n: int) -> int:
        """A quarter of n: the least that the split can give, so that root 0 does not run alone.

        Raises:
            ConfigError: n is below 1.
        """
        require_at_least_one(n=n)
        return max(1, n // 4)

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """m = clip(round(n sigmoid(budget_beta (H_root - H_tool))), first_roots, n); n where no tool answered.

        Raises:
            ConfigError: n is below 1.
        """
        least = self.first_roots(n)
        seen = monitored_entropies(monitor[0])
        if not seen.root or not seen.after_results:
            return n
        gap = seen.root[0].lower - mean_lower(seen.after_results)
        return min(max(round(n * sigmoid(self.budget_beta * gap)), least), n)

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the rise, less the penalty for what the path has wanted just before."""
        left = max(0.0, 1 - self.slope * steps_in_a_row(history))
        chance, level = (clip((self.alpha + self.gamma * rise) * left) for rise in (candidate.rise, 0.0))
        if self.tau is None:
            return toss(self.children, chance, level, candidate.draw)
        branch = chance > self.tau
        return Proposal(self.children if branch else 0, float(branch), branch != (level > self.tau))


@dataclass(frozen=True, slots=True)
class MonitoredEntropies:
    """Entropies of a trajectory's turns: that of the root (empty where it was cut before), and those after results."""

    root: tuple[Entropy, ...]
    after_results: tuple[Entropy, ...]


def monitored_entropies(trajectory: Trajectory) -> MonitoredEntropies:
    """Read them off a trajectory; nodes without an entropy are the later parts of a turn in two nodes."""
    root, after_results = [], []
    for above, node in pairwise(trajectory.nodes):
        if node.source is Source.POLICY and node.entropy is not None:
            if above.source is Source.PROMPT:
                root.append(node.entropy)
            elif above.results:
                after_results.append(node.entropy)
    return MonitoredEntropies(tuple(root), tuple(after_results))


def steps_in_a_row(history: Sequence[BranchDecision]) -> int:
    """l: decisions at the end of the path's history at which entropy rose and a branch was wanted."""
    return sum(1 for _ in takewhile(lambda step: step.planned > 0 and step.rise > 0, reversed(history)))


def mean_lower(entropies: Sequence[Entropy]) -> float:
    """Mean of the lower ends of brackets, the end that all rules compare."""
    return math.fsum(entropy.lower for entropy in entropies) / len(entropies)


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)), which never overflows."""
    return 0.5 * (1 + math.tanh(value / 2))
