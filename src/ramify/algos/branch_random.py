"""The control for every entropy rule: branch at a given rate, regardless of entropy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.algos.branch_arpo import toss
from ramify.algos.branch_roots import BranchingConfig, FixedRoots
from ramify.core.config import Fraction, UserPath
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomConfig(BranchingConfig):
    """The control: branch with probability `rate`, regardless of entropy.

    `rate_from` is the folder of another run: the rate is then the one at which this rule branches as often as that
    run's rule did (`branch/matched_rate` in its metrics, read when this run starts).
    """

    looks_at_entropy = False

    name: Literal["random"] = "random"
    rate: Fraction | None = None
    rate_from: UserPath | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.rate_from is None):
            raise ValueError("expected rate or rate_from, one of the two")

    @property
    def never(self) -> bool:
        """Whether the rate is 0."""
        return self.rate == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBrancher(FixedRoots, RandomConfig):
    """Branch with probability `rate`; entropies of the first k tokens are only reported."""

    m: int

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the candidate's own draw alone."""
        del history
        rate = self.rate or 0.0
        return toss(self.children, rate, rate, candidate.draw)


TOLERANCE = 0.01
"""Relative error in the number of branches that a matched rate may have. If the rule spends every budget, any high rate
does too, and the tolerance lets the search stop at one near the rule's own."""


def matched_rate(sizes: Mapping[tuple[int, int], int], children: int, taken: int, rate: float) -> float:
    """The rate at which `random` should get as many branches as a given rule did on the same trees.

    At the rule's own rate `random` gets more: an entropy rule wants many branches in some trees, where the budget cuts
    them off, and few in others. Of all rates that match, this is the one nearest to the rule's own. The candidates of
    the trees are taken as fixed, although fewer branches would bring fewer candidates.

    Args:
        sizes: Number of trees by (candidates, budget).
        children: Branches that a positive decision asks for (Z).
        taken: Branches that the rule was granted in all trees together.
        rate: The rule's own rate: share of the candidates with budget at which it wanted a branch.
    """
    own = _expected(sizes, children, rate)
    target = min(max(own, (1 - TOLERANCE) * taken), (1 + TOLERANCE) * taken)
    if target == own:
        return rate
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if _expected(sizes, children, middle) < target:
            low = middle
        else:
            high = middle
    return high


def _expected(sizes: Mapping[tuple[int, int], int], children: int, rate: float) -> float:
    """Sum over trees of E[min(budget, children x wanting)], where wanting is Binomial(candidates, rate)."""
    return sum(
        trees * _expected_of_one(candidates, budget, children, rate)
        for (candidates, budget), trees in sizes.items()
    )


def _expected_of_one(candidates: int, budget: int, children: int, rate: float) -> float:
    if rate >= 1:
        return float(min(budget, children * candidates))
    # The sum over b = 1 .. budget of P(children x wanting >= b); each binomial term follows from the one before.
    at_least, term, total = 1.0, (1 - rate) ** candidates, 0.0
    for wanting in range(-(-budget // children)):
        at_least -= term
        total += at_least * min(children, budget - wanting * children)
        term *= (candidates - wanting) / (wanting + 1) * rate / (1 - rate)
    return total
