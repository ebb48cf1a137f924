"""The control of every entropy rule: branch at a given rate whatever the entropies are."""

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.algos.branch_arpo import toss
from ramify.algos.branch_roots import FixedRoots
from ramify.core.errors import ConfigError
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBrancher(FixedRoots):
    """Branch with probability `rate`; entropies of the first k tokens are for reports only.

    Raises:
        ConfigError: `rate` is not in [0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        FixedRoots.__post_init__(self)
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"branching: rate = {self.rate}, expected a number from 0 to 1")

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the candidate's own draw alone."""
        del history
        return toss(self.children, self.rate, self.rate, candidate.draw)
