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
from typing import Any

from ramify.algos.branch_aepo import mean_lower, monitored_entropies, sigmoid, steps_in_a_row
from ramify.algos.branch_arpo import clip
from ramify.algos.branch_rules import FixedRoots, require_at_least_one, toss
from ramify.core.errors import ConfigError, DataError
from ramify.core.protocols import Json
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, NodePath, Trajectory

PENALTY_SLOPE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedStatistic:
    """dh of the released code; with every switch off it is the entropy delta that the other rules use.

    Attributes:
        vocab_size: V, at least 2.
        stale_segment: Use the turn before the tool result, not the one after it.
        summed_over_tokens: Sum over the window and divide by ln V; off: the mean in nats.
        child_baseline_after_branch: A branch's baseline is its own first turn; off: its root's first turn.
        baseline_never_reset: Keep the first baseline ever seen at a slot of the batch, even when a later step puts
            another problem there. This is the rule's state: it is empty when a run starts, and checkpoints keep it.

    Raises:
        ConfigError: V is below 2.
    """

    vocab_size: int
    stale_segment: bool
    summed_over_tokens: bool
    child_baseline_after_branch: bool
    baseline_never_reset: bool
    _first_seen: dict[tuple[int, NodePath], float] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.vocab_size < 2:
            raise ConfigError(f"branching: vocab_size = {self.vocab_size}, expected at least 2")

    def of(self, turns: Sequence[Entropy]) -> float:
        """Mean over turns of each turn's statistic, computed from the lower bound of its entropy."""
        if not self.summed_over_tokens:
            return mean_lower(turns)
        return math.fsum(turn.lower * turn.count for turn in turns) / len(turns) / math.log(self.vocab_size)

    def rise(self, candidate: BranchCandidate) -> float:
        """dh of a candidate."""
        current = len(candidate.turns) - (2 if self.stale_segment else 1)
        first = min(candidate.own_from, current) if self.child_baseline_after_branch else 0
        baseline = self.of(candidate.turns[first : first + 1])
        if self.baseline_never_reset:
            place = _start(candidate.path) if self.child_baseline_after_branch else candidate.path[:1]
            baseline = self._first_seen.setdefault((candidate.slot, place), baseline)
        return self.of(candidate.turns[current : current + 1]) - baseline

    def state(self) -> Mapping[str, Json]:
        """The baselines that are never reset, as rows [slot, path, baseline]; empty with the switch off."""
        if not self.baseline_never_reset:
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
        kept = _baselines(state)
        self._first_seen.clear()
        self._first_seen.update(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedArpoBrancher(FixedRoots):
    """ARPO's branching rule as released.

    Attributes:
        statistic: Computes dh.
        branch_probability: p, in (0, 1).
        entropy_weight: w.
        slot_order: Serve the roots in order, the first one first; off: in random order.
    """

    statistic: ReleasedStatistic
    branch_probability: float
    entropy_weight: float
    slot_order: bool

    @property
    def keeps_slot_order(self) -> bool:
        """The switch `slot_order`."""
        return self.slot_order

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Branch with probability clip(p + w dh, 0, 1)."""
        del history
        rise = self.statistic.rise(candidate)
        probability, level = (clip(self.branch_probability + self.entropy_weight * r) for r in (rise, 0.0))
        return toss(self.children, probability, level, candidate.draw)

    def state(self) -> Mapping[str, Json]:
        """The state of the statistic."""
        return self.statistic.state()

    def restore(self, state: Mapping[str, Json]) -> None:
        """Restore the state of the statistic; raises as it does."""
        self.statistic.restore(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedAepoBrancher:
    """AEPO's branching rule as released.

    Attributes:
        m: Trajectories that start from the prompt; None: computed from a monitored trajectory ("dynamic rollouts").
        statistic: Computes dh, H_root and H_tool.
        branch_probability: p, in (0, 1).
        entropy_weight: w.
        slot_order: Serve the roots in order, the first one first; off: in random order.
        budget_beta: Weight of H_root - H_tool with dynamic rollouts; 0.5 in the release.
        root_segment_in_average: H_tool averages over all segments including the first; off: those after results.
        penalty_per_prompt: l counts the rounds in which any path of the prompt got a new trajectory. Nearly every round
            brings one until the budget is spent, so in logical time l is the number of rounds so far. Off: l counts the
            consecutive tool results on this path at which entropy rose and a branch was wanted.
        probe_tokens: Tokens that the entropy is averaged over (k), 20 in the release.

    Raises:
        ConfigError: A count below 1.
    """

    m: int | None
    statistic: ReleasedStatistic
    branch_probability: float
    entropy_weight: float
    slot_order: bool
    budget_beta: float
    root_segment_in_average: bool
    penalty_per_prompt: bool
    probe_tokens: int

    def __post_init__(self) -> None:
        require_at_least_one(probe_tokens=self.probe_tokens)
        if self.m is not None:
            require_at_least_one(m=self.m)

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
        return self.slot_order

    def first_roots(self, n: int) -> int:
        """All m; with dynamic rollouts only the monitored one.

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
        """The fixed m, or clip(int(n sigmoid(budget_beta (H_root - H_tool))) + 1, 1, n); n if there are no entropies.

        Raises:
            ConfigError: n is below 1, or m above n.
        """
        least = self.first_roots(n)
        if self.m is not None:
            return self.m
        seen = monitored_entropies(monitor[0])
        averaged = (seen.root if self.root_segment_in_average else ()) + seen.after_results
        if not seen.root or not averaged:
            return n
        gap = self.statistic.of(seen.root) - self.statistic.of(averaged)
        return min(max(int(n * sigmoid(self.budget_beta * gap)) + 1, least), n)

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Branch with the probability that (u + w dh) (1 - 0.05 l) >= p for u uniform in [0, 1)."""
        steps = candidate.depth - 1 if self.penalty_per_prompt else steps_in_a_row(history)
        left = max(0.0, 1 - PENALTY_SLOPE * steps)
        rise = self.statistic.rise(candidate)
        probability, level = (self._chance(left, r) for r in (rise, 0.0))
        return toss(self.max_children, probability, level, candidate.draw)

    def state(self) -> Mapping[str, Json]:
        """The state of the statistic."""
        return self.statistic.state()

    def restore(self, state: Mapping[str, Json]) -> None:
        """Restore the state of the statistic; raises as it does."""
        self.statistic.restore(state)

    def _chance(self, left: float, rise: float) -> float:
        return clip(1 + self.entropy_weight * rise - self.branch_probability / left) if left else 0.0


def _start(path: NodePath) -> NodePath:
    """Path of the node where the trajectory through `path` began: its root, or where it branched off another one."""
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
