"""The branching arithmetic of the authors' released ARPO and AEPO code, with a switch for each known defect.

With every switch as released, ARPO branches with probability clip(p + w dh, 0, 1) and AEPO with probability
clip(1 + w dh - p / (1 - 0.05 l), 0, 1). dh is the statistic of a segment minus that of a baseline. The statistic is the
sum of the entropies of a segment's first 20 tokens, divided by ln V.

Not reproduced, because it is not part of the rule's arithmetic: draws from an unseeded global generator; entropies
summed over the ten likeliest tokens only (an engine reports the entropy of the whole distribution, or bounds on it, not
the terms of the sum); one fresh root a round; a monitored trajectory that is thrown away; top-ups that branch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ramify.algos.branch_aepo import mean_lower, monitored_entropies, sigmoid, steps_in_a_row
from ramify.algos.branch_arpo import clip
from ramify.algos.branch_rules import (
    FixedRoots,
    NoQuota,
    RuleConfig,
    RuleSetup,
    require_at_least_one,
    toss,
)
from ramify.core.config import InsideOne, SignedWeight, Switch, Weight
from ramify.core.errors import ConfigError, DataError
from ramify.core.protocols import Brancher, Json
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, NodePath, Trajectory

PENALTY_SLOPE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedConfig(RuleConfig):
    """Switches for defects in the released code of both papers, on as released; B1 to B23 refer to docs/release-defects.md.

    Attributes:
        stale_segment: B2. dh uses the turn before the tool result, not the one after it.
        child_baseline_after_branch: B2. The baseline of a branch is its own first turn, not its root's.
        summed_over_tokens: B3. A sum over the window divided by ln V, not a mean in nats. The other half of B3, sums
            over the ten likeliest tokens, is not reproduced: engines report entropies, not the terms of the sum.
        baseline_never_reset: B1. A slot of the batch keeps the first baseline that it has ever seen, even for other
            problems. Checkpoints keep these baselines.
        slot_order: B5. The first root's branches are served first.
    """

    branch_probability: InsideOne = 0.5
    entropy_weight: SignedWeight = 0.2
    stale_segment: Switch = True
    child_baseline_after_branch: Switch = True
    summed_over_tokens: Switch = True
    baseline_never_reset: Switch = True
    slot_order: Switch = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedArpoConfig(ReleasedConfig):
    """The arithmetic of ARPO's released code: branch with probability clip(branch_probability + entropy_weight * dh).

    A branch has one child (`beam_size` 2).
    """

    name: Literal["seed_compat_arpo"] = "seed_compat_arpo"

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        statistic = ReleasedStatistic(self, setup.vocab_size)
        return ReleasedArpoBrancher(m=setup.m, config=self, statistic=statistic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedAepoConfig(ReleasedConfig):
    """The arithmetic of AEPO's released code: P = clip(1 + entropy_weight * dh - branch_probability / (1 - 0.05 l)).

    Attributes:
        penalty_per_prompt: B23. l counts the rounds in which any path of the prompt got a new trajectory. Nearly every
            round brings one until the budget is spent, so in logical time l is the number of rounds so far. Off: as in
            `balanced`, the consecutive tool results on this path at which entropy rose and a branch was wanted.
        dynamic_rollouts: m = clip(int(n sigmoid(budget_beta (H_root - H_tool))) + 1, 1, n) from a monitored trajectory,
            which is one of the n; leave out `rollout.m`. Off, as in the released scripts: m is `rollout.m`.
        root_segment_in_average: B20. H_tool averages over all segments of the monitored trajectory, also the first;
            off: those after results.
    """

    name: Literal["seed_compat_aepo"] = "seed_compat_aepo"
    penalty_per_prompt: Switch = True
    dynamic_rollouts: Switch = False
    budget_beta: Weight = 0.5
    root_segment_in_average: Switch = True

    def __post_init__(self) -> None:
        for key, default in (("budget_beta", 0.5), ("root_segment_in_average", True)):
            if not self.dynamic_rollouts and getattr(self, key) != default:
                raise ValueError(f"{key}: has no effect without dynamic_rollouts = true. Remove it.")

    @property
    def needs_m(self) -> bool:
        """Unless m is computed from a monitored trajectory."""
        return not self.dynamic_rollouts

    def build(self, setup: RuleSetup) -> Brancher:
        """Return the rule."""
        m = None if self.dynamic_rollouts else setup.m
        statistic = ReleasedStatistic(self, setup.vocab_size)
        return ReleasedAepoBrancher(m=m, config=self, statistic=statistic)


@dataclass(frozen=True, slots=True)
class ReleasedStatistic:
    """dh of the released code; with every switch off it is the entropy delta that the other rules use.

    The baselines that are never reset are the rule's state: empty when a run starts; checkpoints keep it.

    Attributes:
        config: The switches.
        vocab_size: V, at least 2.

    Raises:
        ConfigError: V is below 2.
    """

    config: ReleasedConfig
    vocab_size: int
    _first_seen: dict[tuple[int, NodePath], float] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.vocab_size < 2:
            raise ConfigError(f"branching: vocab_size = {self.vocab_size}, expected at least 2")

    def of(self, turns: Sequence[Entropy]) -> float:
        """Return the mean over turns of each turn's statistic, computed from the lower bound of its entropy."""
        if not self.config.summed_over_tokens:
            return mean_lower(turns)
        return math.fsum(turn.lower * turn.count for turn in turns) / len(turns) / math.log(self.vocab_size)

    def entropy_delta(self, candidate: BranchCandidate) -> float:
        """Return dh of a candidate."""
        current = len(candidate.turns) - (2 if self.config.stale_segment else 1)
        first = min(candidate.own_from, current) if self.config.child_baseline_after_branch else 0
        baseline = self.of(candidate.turns[first : first + 1])
        if self.config.baseline_never_reset:
            origin = _start(candidate.path) if self.config.child_baseline_after_branch else candidate.path[:1]
            baseline = self._first_seen.setdefault((candidate.slot, origin), baseline)
        return self.of(candidate.turns[current : current + 1]) - baseline

    def state(self) -> Mapping[str, Json]:
        """Return the baselines that are never reset, as rows [slot, path, baseline]; empty with the switch off."""
        if not self.config.baseline_never_reset:
            return {}
        rows = sorted(self._first_seen.items())
        return {"first_seen": [(slot, path, value) for (slot, path), value in rows]}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Replace all baselines by those of `state`.

        Raises:
            DataError: The state belongs to another rule, or cannot be read.
        """
        if set(state) != set(self.state()):
            raise DataError(
                f"branching: a state with {sorted(state)}, expected {sorted(self.state())}: it belongs to another rule"
            )
        baselines = _baselines(state)
        self._first_seen.clear()
        self._first_seen.update(baselines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedArpoBrancher(FixedRoots):
    """ARPO's branching rule as released."""

    looks_at_entropy: ClassVar[bool] = True

    m: int
    config: ReleasedArpoConfig
    statistic: ReleasedStatistic
    children: int = 1

    @property
    def probe_tokens(self) -> int:
        """k."""
        return self.config.probe_tokens

    @property
    def keeps_slot_order(self) -> bool:
        """The switch `slot_order`."""
        return self.config.slot_order

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Branch with probability clip(p + w dh, 0, 1)."""
        del history
        delta = self.statistic.entropy_delta(candidate)
        probability, level = (
            clip(self.config.branch_probability + self.config.entropy_weight * r) for r in (delta, 0.0)
        )
        return toss(self.children, probability, level, candidate.draw)

    def state(self) -> Mapping[str, Json]:
        """Return the state of the statistic."""
        return self.statistic.state()

    def restore(self, state: Mapping[str, Json]) -> None:
        """Restore the state of the statistic; raises as it does."""
        self.statistic.restore(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedAepoBrancher(NoQuota):
    """AEPO's branching rule as released; `m` is None with dynamic rollouts."""

    looks_at_entropy: ClassVar[bool] = True

    m: int | None
    config: ReleasedAepoConfig
    statistic: ReleasedStatistic

    @property
    def probe_tokens(self) -> int:
        """k."""
        return self.config.probe_tokens

    @property
    def num_monitor(self) -> int:
        """1 with dynamic rollouts, else 0."""
        return 1 if self.m is None else 0

    @property
    def max_children(self) -> int:
        """1, as in all released runs."""
        return 1

    @property
    def keeps_slot_order(self) -> bool:
        """The switch `slot_order`."""
        return self.config.slot_order

    def first_roots(self, n: int) -> int:
        """Return all m; with dynamic rollouts only the monitored one.

        Raises:
            ConfigError: n is below 1, or m above n.
        """
        require_at_least_one(n=n)
        if self.m is None:
            return 1
        if self.m > n:
            raise ConfigError(f"branching: m = {self.m} roots, expected at most n = {n}")
        return self.m

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """Return the fixed m, or clip(int(n sigmoid(budget_beta (H_root - H_tool))) + 1, 1, n); n if there are no entropies.

        Raises:
            ConfigError: n is below 1, or m above n.
        """
        least = self.first_roots(n)
        if self.m is not None:
            return self.m
        entropies = monitored_entropies(monitor[0])
        averaged = (entropies.root if self.config.root_segment_in_average else ()) + entropies.after_results
        if not entropies.root or not averaged:
            return n
        gap = self.statistic.of(entropies.root) - self.statistic.of(averaged)
        return min(max(int(n * sigmoid(self.config.budget_beta * gap)) + 1, least), n)

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Branch with the probability that (u + w dh) (1 - 0.05 l) >= p for u uniform in [0, 1)."""
        steps = candidate.depth - 1 if self.config.penalty_per_prompt else steps_in_a_row(history)
        left = max(0.0, 1 - PENALTY_SLOPE * steps)
        delta = self.statistic.entropy_delta(candidate)
        probability, level = (self._chance(left, r) for r in (delta, 0.0))
        return toss(self.max_children, probability, level, candidate.draw)

    def state(self) -> Mapping[str, Json]:
        """Return the state of the statistic."""
        return self.statistic.state()

    def restore(self, state: Mapping[str, Json]) -> None:
        """Restore the state of the statistic; raises as it does."""
        self.statistic.restore(state)

    def _chance(self, left: float, delta: float) -> float:
        return (
            clip(1 + self.config.entropy_weight * delta - self.config.branch_probability / left)
            if left
            else 0.0
        )


def _start(path: NodePath) -> NodePath:
    """Return the path of the node where the trajectory through `path` began: its root, or where it branched off another one."""
    end = len(path)
    while end > 1 and path[end - 1] == 0:
        end -= 1
    return path[:end]


def _baselines(state: Mapping[str, Json]) -> dict[tuple[int, NodePath], float]:
    rows: Any = state.get("first_seen", ())
    try:
        return {(int(slot), tuple(map(int, path))): float(value) for slot, path, value in rows}
    except (TypeError, ValueError):
        raise DataError(
            "branching: first_seen cannot be read, expected rows of slot, path and baseline"
        ) from None
