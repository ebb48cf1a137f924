"""ARPO's branching rules (arXiv 2507.19849, section 3.1): branch where entropy rose after a tool result.

Entropies are nats per token, averaged over the probe and never divided by ln V. `threshold` reads the paper's
P > tau with a fixed tau as "the rise exceeds a minimum"; `bernoulli` tosses a coin of probability P, as the
released code does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.core.errors import ConfigError
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roots:
    """What both rules share: a fixed number of roots.

    Attributes:
        m: Trajectories that start from the prompt.
        children: Branches that a positive decision asks for (Z), beside the parent's own continuation.
        probe_tokens: k, tokens that the entropy is averaged over.
    """

    m: int
    children: int
    probe_tokens: int

    def __post_init__(self) -> None:
        for name in ("m", "children", "probe_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"branching: {name} = {getattr(self, name)}, expected at least 1")

    @property
    def num_monitor(self) -> int:
        """The number of roots is known at once."""
        return 0

    @property
    def max_children(self) -> int:
        """Z."""
        return self.children

    @property
    def keeps_slot_order(self) -> bool:
        """The order of the roots is drawn."""
        return False

    def first_roots(self, n: int) -> int:
        """All m.

        Raises:
            ConfigError: m is above n.
        """
        return self.num_roots(n, ())

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """The fixed m.

        Raises:
            ConfigError: m is above n.
        """
        del monitor
        if self.m > n:
            raise ConfigError(f"branching: m = {self.m} roots, expected at most n = {n}")
        return self.m


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdBrancher(_Roots):
    """Branch where the rise exceeds `min_rise` nats (0: the paper's alpha = tau)."""

    min_rise: float

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the rise alone."""
        del history
        branch = candidate.rise > self.min_rise
        return Proposal(self.children if branch else 0, float(branch), branch != (self.min_rise < 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class BernoulliBrancher(_Roots):
    """Branch with probability P = clip(alpha + beta rise, 0, 1); beta is per nat."""

    alpha: float
    beta: float

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the candidate's own draw: draw < P."""
        del history
        probability = min(max(self.alpha + self.beta * candidate.rise, 0.0), 1.0)
        branch = candidate.draw < probability
        without = candidate.draw < min(max(self.alpha, 0.0), 1.0)
        return Proposal(self.children if branch else 0, probability, branch != without)
