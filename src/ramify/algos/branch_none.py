"""No branching: a tree that forks at its prompt only, as GRPO samples it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.algos.branch_roots import Memoryless, RuleConfig, require_at_least_one
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatConfig(RuleConfig):
    """Flat sampling: every trajectory starts from the prompt."""

    branches = False
    looks_at_entropy = False

    name: Literal["none"] = "none"

    @property
    def needs_m(self) -> bool:
        """False: all n start from the prompt."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBrancher(Memoryless, FlatConfig):
    """All trajectories start from the prompt; entropies of the first `probe_tokens` are only reported."""

    @property
    def num_monitor(self) -> int:
        """0: the number of roots is known at once."""
        return 0

    @property
    def max_children(self) -> int:
        """0: no candidate ever wants a child."""
        return 0

    @property
    def keeps_slot_order(self) -> bool:
        """False: without branches the order of the roots does not matter."""
        return False

    def first_roots(self, n: int) -> int:
        """All n.

        Raises:
            ConfigError: n is below 1.
        """
        return self.num_roots(n, ())

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """All n.

        Raises:
            ConfigError: n is below 1.
        """
        del monitor
        require_at_least_one(n=n)
        return n

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Never branch."""
        del candidate, history
        return Proposal(0, 0.0, False)
