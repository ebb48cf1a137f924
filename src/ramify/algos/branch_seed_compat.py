"""The branching arithmetic of the authors' released ARPO and AEPO code, each known defect a switch.

With every switch as released, ARPO branches with probability clip(p + w dh, 0, 1) and AEPO with probability
clip(1 + w dh - p / (1 - 0.05 l), 0, 1). dh is the statistic of a segment minus a baseline, with the statistic the sum of
the entropies of its first 20 tokens divided by ln V.

What is not reproduced, because it is no arithmetic of the rule: draws from an unseeded global generator; sums over the
ten likeliest tokens alone (an engine reports the entropy of the whole distribution, or a bracket of it, not the terms
of the sum); one fresh root a round; a monitored trajectory that is thrown away; top-ups that branch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.algos.branch_aepo import mean_lower, monitored_entropies, sigmoid, steps_in_a_row
from ramify.algos.branch_arpo import clip, toss
from ramify.algos.branch_roots import FixedRoots, require_at_least_one
from ramify.core.errors import ConfigError, DataError
from ramify.core.protocols import Json
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, NodePath, Trajectory

PENALTY_SLOPE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedStatistic:
    """dh of the released code; with every switch off it is the rise that the other rules see.

    Attributes:
        vocab_size: V, at least 2.
        stale_segment: Take the turn before the tool result, not the one after it.
        summed_over_tokens: Sum over the window and divide by ln V; off: the mean in nats.
        child_baseline_after_branch: A branch's baseline is its own first turn; off: its root's.
        baseline_never_reset: Keep the first baseline ever seen at a place of the batch, whichever problem comes there
            later. This is state of the rule: a run starts with none, and checkpoints keep it.

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
        """Mean over turns of the statistic of each, at the lower ends of its bracket."""
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
        """The baselines that are never reset: [slot, path, nats] of each place."""
        if not self.baseline_never_reset:
            return {}
        rows = sorted(self._first_seen.items())
        return {"first_seen": [(slot, path, value) for (slot, path), value in rows]}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Keep the baselines of `state` instead of those seen.

        Raises:
            DataError: It is the state of another rule.
        """
        if set(state) != set(self.state()):
            raise DataError(
                f"branching: a state with {sorted(state)}, expected {sorted(self.state())}: it is of another rule"
            )
        kept = _baselines(state)
        self._first_seen.clear()
        self._first_seen.update(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedArpoBrancher(FixedRoots):
    """ARPO as released.

    Attributes:
        statistic: dh.
        branch_probability: p, in (0, 1).
        entropy_weight: w.
        slot_order: The first root is served first; off: the order of the roots is drawn.
    """

    statistic: ReleasedStatistic
    branch_probability: float
    entropy_weight: float
    slot_order: bool

    @property
    def keeps_slot_order(self) -> bool:
        """As the switch says."""
        return self.slot_order

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Toss a coin of probability clip(p + w dh, 0, 1)."""
        del history
        rise = self.statistic.rise(candidate)
        probability, level = (clip(self.branch_probability + self.entropy_weight * r) for r in (rise, 0.0))
        return toss(self.children, probability, level, candidate.draw)

    def state(self) -> Mapping[str, Json]:
        """That of the statistic."""
        return self.statistic.state()

    def restore(self, state: Mapping[str, Json]) -> None:
        """As for the statistic."""
        self.statistic.restore(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedAepoBrancher:
    """AEPO as released.

    Attributes:
        m: Trajectories that start from the prompt; None: found from a monitored trajectory ("dynamic rollouts").
        statistic: dh, and what the split compares.
        branch_probability: p, in (0, 1).
        entropy_weight: w.
        slot_order: The first root is served first; off: the order of the roots is drawn.
        budget_beta: Weight of H_root - H_tool where m is found; 0.5 in the release.
        root_segment_in_average: H_tool averages over all segments, the first one included; off: those after results.
        penalty_per_prompt: l counts the prompt's rounds that made a new trajectory, whichever path it is on. In logical
            time these are the rounds so far: nearly every round makes one until the budget is spent. Off: the
            consecutive steps of this path that branched on a rise.
        probe_tokens: k, 20 in the release.

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
        """One with dynamic rollouts."""
        return 1 if self.m is None else 0

    @property
    def max_children(self) -> int:
        """One, as in all released runs."""
        return 1

    @property
    def keeps_slot_order(self) -> bool:
        """As the switch says."""
        return self.slot_order

    def first_roots(self, n: int) -> int:
        """All m; with dynamic rollouts the monitored one.

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
        """The fixed m, or clip(int(n sigmoid(budget_beta (H_root - H_tool))) + 1, 1, n); n without entropies.

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
        """Toss a coin of the chance that (u + w dh) (1 - 0.05 l) >= p for u uniform in [0, 1)."""
        steps = candidate.depth - 1 if self.penalty_per_prompt else steps_in_a_row(history)
        left = max(0.0, 1 - PENALTY_SLOPE * steps)
        rise = self.statistic.rise(candidate)
        probability, level = (self._chance(left, r) for r in (rise, 0.0))
        return toss(self.max_children, probability, level, candidate.draw)

    def state(self) -> Mapping[str, Json]:
        """That of the statistic."""
        return self.statistic.state()

    def restore(self, state: Mapping[str, Json]) -> None:
        """As for the statistic."""
        self.statistic.restore(state)

    def _chance(self, left: float, rise: float) -> float:
        return clip(1 + self.entropy_weight * rise - self.branch_probability / left) if left else 0.0


def _start(path: NodePath) -> NodePath:
    """Path at which the trajectory through `path` began: its root, or the branch where it left another one."""
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
