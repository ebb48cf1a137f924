"""What branching rules share, and the two that look at no entropy: no branching, and branching at random."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from ramify.algos.paired_run import PairedRun
from ramify.core.config import Config, Fraction, Tokens, Trajectories, UserPath, Within
from ramify.core.errors import ConfigError, DataError
from ramify.core.protocols import Brancher, Json
from ramify.core.records import BranchCandidate, BranchQuota, Proposal
from ramify.core.tree import BranchDecision, Trajectory, TreeKey


def require_at_least_one(**counts: int) -> None:
    """Check that all counts are at least 1.

    Raises:
        ConfigError: One is not; names the first.
    """
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"branching: {name} = {count}, expected at least 1")


@dataclass(frozen=True, slots=True)
class RuleSetup:
    """What a branching rule is built with besides its settings.

    Attributes:
        m: Trajectories that start from the prompt, for a rule that does not compute it.
        vocab_size: V.
        rate_of: Returns the rate at which `random` branches as often as the rule of a run's folder did.
        paired_run: Reads the decisions of the run in a folder.
    """

    m: int
    vocab_size: int
    rate_of: Callable[[Path], float]
    paired_run: Callable[[Path], PairedRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig(Config):
    """Settings of a branching rule; weights are per nat of the mean entropy over `probe_tokens` tokens (k)."""

    branches: ClassVar[bool] = True
    looks_at_entropy: ClassVar[bool] = True
    """Whether entropies can change a decision."""

    name: str = ""
    probe_tokens: Tokens = 20

    @property
    def needs_m(self) -> bool:
        """Return True if the recipe must set m, the number of trajectories that start from the prompt."""
        return True

    @property
    def never(self) -> bool:
        """Return True if the probability of a branch is 0."""
        return False

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule; each has its own."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchingConfig(RuleConfig):
    """Settings of a rule that asks for `children` branches (Z) at a positive decision, beside the parent's own path."""

    children: Trajectories = 1


class NoQuota:
    """A rule that no quota binds."""

    __slots__ = ()

    def quota(self, key: TreeKey, problem: str) -> BranchQuota | None:
        """Return None: as many branches as the rule wants."""
        del key, problem
        return None


class Memoryless(NoQuota):
    """A rule that decides from the candidate and its history alone."""

    __slots__ = ()

    def state(self) -> Mapping[str, Json]:
        """Return an empty state: the rule has no state."""
        return {}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Accept an empty state.

        Raises:
            DataError: The state is not empty, so it is that of another rule.
        """
        if state:
            raise DataError(f"branching: expected no state, got {sorted(state)}: it belongs to another rule")


class FixedRoots(Memoryless):
    """A rule whose trees start with m trajectories; `children` is Z, the branches that a positive decision asks for."""

    __slots__ = ()
    m: int
    children: int

    @property
    def num_monitor(self) -> int:
        """0: the number of roots is known at once."""
        return 0

    @property
    def max_children(self) -> int:
        """Z, the same at every candidate."""
        return self.children

    @property
    def keeps_slot_order(self) -> bool:
        """False: the roots are served in random order."""
        return False

    def first_roots(self, n: int) -> int:
        """Return all m.

        Raises:
            ConfigError: n is below 1, or m above n.
        """
        return self.num_roots(n, ())

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """Return the fixed m.

        Raises:
            ConfigError: n is below 1, or m above n.
        """
        del monitor
        require_at_least_one(n=n)
        if self.m > n:
            raise ConfigError(f"branching: m = {self.m} roots, expected at most n = {n}")
        return self.m


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatConfig(RuleConfig):
    """Flat sampling: every trajectory starts from the prompt. With `probe_tokens = 0` no entropies are asked for."""

    branches = False
    looks_at_entropy = False

    name: Literal["none"] = "none"
    probe_tokens: Annotated[int, Within(ge=0, le=2**24)] = 20

    @property
    def needs_m(self) -> bool:
        """False: all n start from the prompt."""
        return False

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        del setup
        return FlatBrancher(**self.values())


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
        """Return all n.

        Raises:
            ConfigError: n is below 1.
        """
        return self.num_roots(n, ())

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """Return all n.

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
        """Return True if the rate is 0."""
        return self.rate == 0

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule, at the rate of the run that `rate_from` names."""
        rate = self.rate if self.rate_from is None else setup.rate_of(self.rate_from)
        return RandomBrancher(m=setup.m, **replace(self, rate=rate, rate_from=None).values())


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
    """Return the rate at which `random` should get as many branches as a given rule did on the same trees.

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


def toss(children: int, probability: float, at_no_delta: float, draw: float) -> Proposal:
    """Branch if `draw`, uniform in [0, 1), is below the probability.

    Args:
        children: Branches that a positive decision asks for.
        probability: Probability of branching.
        at_no_delta: The probability if entropy had not changed.
        draw: The candidate's own random number.
    """
    branch = draw < probability
    # With the same draw: had it been decided otherwise where entropy stayed, then entropy decided it.
    return Proposal(children if branch else 0, probability, branch != (draw < at_no_delta))
