"""Controls of an experiment on branching: rules that share all but one property with the rule under test.

`random` (in `branch_rules`) has a constant rate. Those here remove what it leaves open: `yoked` takes as many branches of each
problem in each step as a paired run did, `shuffled` gives a rule another candidate's entropy delta, `oracle` branches where the
world says that a result is ambiguous, and `quantile` branches at a constant rate where the delta is largest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ramify.algos.branch_aepo import BalancedConfig
from ramify.algos.branch_arpo import BernoulliConfig, ThresholdConfig
from ramify.algos.branch_rules import BranchingConfig, FixedRoots, Memoryless, RuleConfig, RuleSetup
from ramify.algos.paired_run import PairedRun
from ramify.core.config import Fraction, PositiveInt, SignedWeight, UserPath
from ramify.core.draws import stream, uniform
from ramify.core.errors import DataError
from ramify.core.protocols import Brancher, Json
from ramify.core.records import BranchCandidate, BranchQuota, Proposal
from ramify.core.tree import BranchDecision, NodePath, Trajectory, TreeKey

_ROUNDING = 1e-9
"""Most by which a number of deltas times a share misses a whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YokedConfig(BranchingConfig):
    """The matched control: as many branches of each problem in each step as the run `of` took, at results drawn by chance.

    `of` is the folder of a training run with the same data, `run.seed`, n, m and `problems_per_step`; its traces are read when
    this run starts. A problem that it grew in another step only has the branches of that one.
    """

    looks_at_entropy = False

    name: Literal["yoked"] = "yoked"
    of: UserPath

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        run = setup.paired_run(self.of)
        return YokedBrancher(m=setup.m, children=self.children, probe_tokens=self.probe_tokens, run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class YokedBrancher(FixedRoots):
    """Want a branch after every result; the quota of the tree decides which get one."""

    looks_at_entropy: ClassVar[bool] = False

    m: int
    children: int
    probe_tokens: int
    run: PairedRun

    def quota(self, key: TreeKey, problem: str) -> BranchQuota:
        """Return the branches of the paired run; raises as it does."""
        return self.run.quota(key, problem)

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Want a branch."""
        del candidate, history
        return Proposal(self.children, 1.0, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledConfig(RuleConfig):
    """The control with the right distribution at the wrong places: `rule` decides by the entropy delta of another candidate.

    The delta is drawn from all candidates that the run `of` decided on in the same step, in all its steps if it has not that one.
    """

    looks_at_entropy = False

    name: Literal["shuffled"] = "shuffled"
    of: UserPath
    rule: Annotated[ThresholdConfig | BernoulliConfig | BalancedConfig, Field(discriminator="name")]

    def __post_init__(self) -> None:
        if self.probe_tokens != self.rule.probe_tokens:
            raise ValueError(
                f"probe_tokens: expected that of rule, {self.rule.probe_tokens}, got {self.probe_tokens}"
            )

    @property
    def needs_m(self) -> bool:
        """Return True if the rule does."""
        return self.rule.needs_m

    @property
    def never(self) -> bool:
        """Return True if the rule never branches."""
        return self.rule.never

    @property
    def children(self) -> int:
        """Z of the rule."""
        return self.rule.children

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        return ShuffledBrancher(inner=self.rule.build(setup), run=setup.paired_run(self.of))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledBrancher(Memoryless):
    """Another rule at deltas of a paired run; what it decides on a path before is its own."""

    looks_at_entropy: ClassVar[bool] = False
    keeps_slot_order: ClassVar[bool] = False

    inner: Brancher
    run: PairedRun

    @property
    def num_monitor(self) -> int:
        """As the rule's."""
        return self.inner.num_monitor

    @property
    def probe_tokens(self) -> int:
        """As the rule's."""
        return self.inner.probe_tokens

    @property
    def max_children(self) -> int:
        """As the rule's."""
        return self.inner.max_children

    def first_roots(self, n: int) -> int:
        """Return the rule's; raises as it does."""
        return self.inner.first_roots(n)

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """Return the rule's; raises as it does."""
        return self.inner.num_roots(n, monitor)

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide as the rule would at the delta of a candidate drawn from the paired run's."""
        step = candidate.step
        # Deltas are against the first turn: with this entropy the last one has the delta that was drawn.
        entropy = candidate.turns[0].lower + self._delta(step, candidate.draw)
        last = replace(candidate.turns[-1], lower=entropy, upper=entropy)
        shuffled = replace(candidate, turns=(*candidate.turns[:-1], last))
        # Decisions hold the deltas that were measured; AEPO's penalty asks for those that the rule decided by.
        decided = [replace(each, entropy_delta=self._delta(step, each.draw)) for each in history]
        return replace(self.inner.propose(shuffled, decided), entropy_acted=False)

    def _delta(self, step: int, draw: float) -> float:
        """Return the delta that the candidate with this draw gets."""
        deltas = self.run.deltas(step)
        # A draw of its own: the rule tosses with the candidate's, which must not have chosen the delta too.
        return deltas[int(uniform(stream("shuffled", int(draw * 2**53))) * len(deltas))]


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleConfig(BranchingConfig):
    """The upper bound: branch exactly after results that the world itself marks as ambiguous (`ToolResult.ambiguous`)."""

    looks_at_entropy = False

    name: Literal["oracle"] = "oracle"

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        return OracleBrancher(m=setup.m, **self.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleBrancher(FixedRoots, OracleConfig):
    """Branch where the world marks a result of the turn."""

    m: int

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the mark alone."""
        del history
        return Proposal(self.children if candidate.ambiguous else 0, float(candidate.ambiguous), False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileConfig(BranchingConfig):
    """Branch at the results with the largest entropy deltas, at a rate that stays: a threshold that follows the policy.

    Attributes:
        rate: Share of the results at which the rule wants a branch.
        steps: Number of earlier steps whose deltas set the threshold, their quantile 1 - rate.
        min_entropy_delta: Threshold of the first step, nats per token.
    """

    name: Literal["quantile"] = "quantile"
    rate: Fraction = 0.3
    steps: PositiveInt = 4
    min_entropy_delta: SignedWeight = 0.0

    @property
    def never(self) -> bool:
        """Return True if the rate is 0."""
        return self.rate == 0

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        return QuantileBrancher(
            m=setup.m, children=self.children, probe_tokens=self.probe_tokens, config=self
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileBrancher(FixedRoots):
    """Branch where the delta exceeds the quantile of earlier steps; a step's own deltas act from the next step on."""

    looks_at_entropy: ClassVar[bool] = True

    m: int
    children: int
    probe_tokens: int
    config: QuantileConfig
    _deltas: dict[int, dict[tuple[int, NodePath], float]] = field(
        default_factory=dict, init=False, compare=False
    )
    _thresholds: dict[int, float] = field(default_factory=dict, init=False, compare=False)

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide by the entropy delta, and remember it."""
        del history
        threshold = self._threshold(candidate.step)
        # The ends of a bracket are proposed after the candidate itself, at the same place.
        self._deltas[candidate.step].setdefault((candidate.slot, candidate.path), candidate.entropy_delta)
        branch = candidate.entropy_delta > threshold
        return Proposal(self.children if branch else 0, float(branch), branch != (threshold < 0))

    def _threshold(self, step: int) -> float:
        """Return the threshold of a step; forget what lies too far behind it."""
        if step not in self._thresholds:
            for old in [number for number in self._deltas if number < step - self.config.steps]:
                del self._deltas[old]
            # Not the step's own, which come in the order in which trajectories do.
            earlier = sorted(
                delta for number, deltas in self._deltas.items() if number < step for delta in deltas.values()
            )
            # 10 x (1 - .7) is a little above 3, which would become 4.
            below = math.ceil(len(earlier) * (1 - self.config.rate) - _ROUNDING)
            threshold = earlier[below - 1] if below else -math.inf
            self._thresholds.clear()
            self._thresholds[step] = threshold if earlier else self.config.min_entropy_delta
            self._deltas.setdefault(step, {})
        return self._thresholds[step]

    def state(self) -> Mapping[str, Json]:
        """Return the deltas of the last steps, as rows [step, slot, path, delta]."""
        rows: list[Json] = [
            [step, slot, list(path), delta]
            for step, deltas in sorted(self._deltas.items())
            for (slot, path), delta in sorted(deltas.items())
        ]
        return {"deltas": rows}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Replace all deltas by those of `state`.

        Raises:
            DataError: The state belongs to another rule, or cannot be read.
        """
        if set(state) != {"deltas"}:
            raise DataError(
                f"branching: a state with {sorted(state)}, expected ['deltas']: it belongs to another rule"
            )
        rows: Any = state["deltas"]
        deltas: dict[int, dict[tuple[int, NodePath], float]] = {}
        try:
            for step, slot, path, delta in rows:
                deltas.setdefault(int(step), {})[int(slot), tuple(map(int, path))] = float(delta)
        except (TypeError, ValueError):
            raise DataError(
                "branching: deltas cannot be read, expected rows of step, slot, path and delta"
            ) from None
        self._deltas.clear()
        self._deltas.update(deltas)
        self._thresholds.clear()
