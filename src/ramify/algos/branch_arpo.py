"""ARPO's branching rules (arXiv 2507.19849, section 3.1): branch where entropy rose after a tool result.

Entropies are nats per token, averaged over the probe and never divided by ln V. `threshold` reads the paper's
P > tau with a fixed tau as "the delta exceeds a minimum"; `bernoulli` tosses a coin of probability P, as the
released code does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.algos.branch_rules import BranchingConfig, FixedRoots, RuleSetup, toss
from ramify.core.config import Fraction, SignedWeight
from ramify.core.protocols import Brancher
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdConfig(BranchingConfig):
    """Branch when the entropy after a result rises by more than `min_entropy_delta` nats per token (0: the paper's alpha = tau)."""

    name: Literal["threshold"] = "threshold"
    min_entropy_delta: SignedWeight = 0.0

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        return ThresholdBrancher(m=setup.m, **self.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdBrancher(FixedRoots, ThresholdConfig):
    """Branch where the entropy delta exceeds `min_entropy_delta`."""

    m: int

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the entropy delta alone."""
        del history
        branch = candidate.entropy_delta > self.min_entropy_delta
        return Proposal(self.children if branch else 0, float(branch), branch != (self.min_entropy_delta < 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class BernoulliConfig(BranchingConfig):
    """Branch with probability clip(alpha + beta * entropy delta); beta per nat (the release's 0.2 on 20-token sums)."""

    name: Literal["bernoulli"] = "bernoulli"
    alpha: Fraction = 0.5
    beta: SignedWeight = 0.335

    @property
    def never(self) -> bool:
        """Return True if both weights are 0."""
        return self.alpha == 0 and self.beta == 0

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        return BernoulliBrancher(m=setup.m, **self.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BernoulliBrancher(FixedRoots, BernoulliConfig):
    """Branch with probability P = clip(alpha + beta delta, 0, 1)."""

    m: int

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the candidate's own draw: draw < P."""
        del history
        probability, level = (
            clip(self.alpha + self.beta * delta) for delta in (candidate.entropy_delta, 0.0)
        )
        return toss(self.children, probability, level, candidate.draw)


def clip(value: float) -> float:
    """Return the value, clipped to [0, 1]."""
    return min(max(value, 0.0), 1.0)
