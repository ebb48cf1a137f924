"""The branch budget of a problem, spent in logical time so that the tree does not depend on latencies.

A candidate is a tool result on a trajectory. Candidates are ordered by a key that does not depend on any clock:
(tool results on the path, seeded rank of the root, place among the branches). A candidate that wants children is
granted as soon as there is room besides what smaller keys hold and the most that they could still claim. It is
refused once smaller keys hold the whole budget. The parent's own continuation never waits for this. Budget that
branches can no longer use goes to fresh trajectories from the prompt (top-ups), which never branch.

A tree with a quota (`QuotaBudget`) decides the candidates of a depth together instead.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ramify.core.records import BranchQuota
from ramify.rollout.turn import BranchKey


@dataclass(frozen=True, slots=True)
class BranchAllocation:
    """`children` new trajectories may start at tool result `depth` of trajectory `key` (0: refused)."""

    key: BranchKey
    depth: int
    children: int

    @property
    def child_keys(self) -> tuple[BranchKey, ...]:
        """The keys of the new trajectories; the budget counts them as alive from the allocation on."""
        return tuple((*self.key, self.depth, index) for index in range(1, self.children + 1))


@dataclass(frozen=True, slots=True)
class Allocation:
    """The decisions that can be made now: grants and refusals in order, and the number of top-ups to start."""

    branches: tuple[BranchAllocation, ...]
    top_ups: int


@dataclass
class BranchBudget:
    """The accounts of one problem's budget; nothing is decided until `open` sets the budget.

    Attributes:
        max_depth: Most tool results that a path can have.
        fanout: Most children that one candidate can want (Z).
    """

    max_depth: int
    fanout: int
    _budget: int | None = None
    _alive: dict[BranchKey, int] = field(default_factory=dict)
    _waiting: dict[tuple[int, BranchKey], int] = field(default_factory=dict)
    _granted: dict[tuple[int, BranchKey], int] = field(default_factory=dict)
    _used: int = 0
    _top_ups: int = 0

    @property
    def spent(self) -> bool:
        """True if nothing is left to decide."""
        return self._budget is not None and self._used + self._top_ups >= self._budget and not self._waiting

    def open(self, budget: int) -> None:
        """Set the budget: the number of trajectories beyond the roots, n - m."""
        self._budget = budget

    def left_for(self, key: BranchKey, depth: int) -> int:
        """Return the budget that smaller keys left for a candidate at this place; final once all trajectories have ended.

        It depends on what was granted and never on when, so it is the same for all latencies.
        """
        return 0 if self._budget is None else self._budget - self._held_before(depth, key)

    def start_root(self, key: BranchKey) -> None:
        """Count a root that starts as alive."""
        self._alive[key] = 0

    def chance(self, key: BranchKey, depth: int) -> float | None:
        """Return the chance of a branch if the budget decides it, and None if the rule does."""
        del key, depth
        return None

    def resolve(self, key: BranchKey, depth: int, wanted: int, draw: float = 0.0) -> None:
        """Note that the rule wants `wanted` children at tool result `depth` of trajectory `key`; `draw` is the candidate's."""
        del draw
        self._alive[key] = depth
        if wanted:
            self._waiting[depth, key] = wanted

    def finish(self, key: BranchKey) -> None:
        """Note that trajectory `key` has ended and can claim nothing more."""
        del self._alive[key]

    def allocate(self) -> Allocation:
        """Decide everything that can be decided now."""
        if self._budget is None:
            return Allocation((), 0)
        branches = tuple(self._decide(self._budget))
        # What nobody can claim any more starts now: a top-up takes as long as any other trajectory.
        free = self._budget - self._used - self._top_ups - self._claims_of_all(self._budget)
        top_ups = max(0, free)
        self._top_ups += top_ups
        return Allocation(branches, top_ups)

    def _decide(self, budget: int) -> Iterator[BranchAllocation]:
        # A grant only takes room from larger keys, so one pass in key order decides everything that can be decided.
        for depth, key in sorted(self._waiting):
            room = budget - self._held_before(depth, key)
            claims = self._claims_before(depth, key, budget)
            wanted = self._waiting[depth, key]
            # It waits while smaller keys can still take some of what it wants. Once they cannot, it takes what there is, and in a full
            # budget nothing.
            if room > 0 and room - claims < (wanted if claims else 1):
                continue
            children = max(0, min(wanted, room))
            del self._waiting[depth, key]
            branch = BranchAllocation(key, depth, children)
            if children:
                self._granted[depth, key] = children
                self._used += children
                self._alive.update(dict.fromkeys(branch.child_keys, depth))
            yield branch

    def _held_before(self, depth: int, key: BranchKey) -> int:
        return sum(count for candidate, count in self._granted.items() if candidate < (depth, key))

    def _growth(self, levels: int, budget: int) -> int:
        """Return the most trajectories that one can become by branching at `levels` tool results: (1 + Z)^levels."""
        # Beyond the budget the exact number does not matter, and the power would grow without bound.
        return int(min((1 + self.fanout) ** min(levels, 64), budget + 1)) if levels > 0 else 1

    def _claims_of_all(self, budget: int) -> int:
        claims = sum(self._growth(self.max_depth - done, budget) - 1 for done in self._alive.values())
        return claims + sum(
            wanted * self._growth(self.max_depth - depth, budget)
            for (depth, _), wanted in self._waiting.items()
        )

    def _claims_before(self, depth: int, key: BranchKey, budget: int) -> int:
        """Return the most children that candidates with keys smaller than (depth, key) can still be granted."""
        claims = 0
        for other, done in self._alive.items():
            # At this very depth only results of trajectories with smaller keys come before this one.
            at_same_depth = other < key
            claims += self._growth(depth - (0 if at_same_depth else 1) - done, budget) - 1
        for (other_depth, other), wanted in self._waiting.items():
            if (other_depth, other) < (depth, key):
                claims += wanted * self._growth(depth - other_depth, budget)
        return claims


@dataclass(kw_only=True)
class QuotaBudget(BranchBudget):
    """Grants exactly the quota if there are as many tool results, with equal chances for all results of a depth.

    The results of a depth are decided together, as soon as every trajectory has come that far. They get their share of what is
    left of the quota: their number over the number of results expected from here on. What a depth cannot take goes to the
    next one. Budget beyond the quota goes to fresh trajectories at once.

    Attributes:
        quota: The branches, and the results by depth at which the paired tree had budget.
        rounding: A random number in [0, 1) of the tree, which rounds a share up or down.
    """

    quota: BranchQuota
    rounding: float
    _draws: dict[tuple[int, BranchKey], float] = field(default_factory=dict)
    _chances: dict[tuple[int, BranchKey], float] = field(default_factory=dict)

    def resolve(self, key: BranchKey, depth: int, wanted: int, draw: float = 0.0) -> None:
        """Note the candidate and its draw, which orders the results of a depth."""
        super().resolve(key, depth, wanted)
        self._draws[depth, key] = draw

    def chance(self, key: BranchKey, depth: int) -> float | None:
        """Return the chance of a branch that the candidate had; 0 once the quota was spent."""
        return self._chances.get((depth, key), 0.0)

    def left_for(self, key: BranchKey, depth: int) -> int:
        """Return what smaller depths left of the quota; final once all trajectories have ended."""
        del key
        return self._most(self._budget or 0) - sum(
            count for (at, _), count in self._granted.items() if at < depth
        )

    def _most(self, budget: int) -> int:
        return min(self.quota.branches, budget)

    def _claims_of_all(self, budget: int) -> int:
        return min(super()._claims_of_all(budget), self._most(budget) - self._used)

    def _decide(self, budget: int) -> Iterator[BranchAllocation]:
        while self._waiting:
            depth, _ = min(self._waiting)
            # A share is over all results of a depth, and a trajectory that is not that far may still bring one.
            if any(done < depth for done in self._alive.values()):
                return
            yield from self._decide_depth(depth, self._most(budget) - self._used)

    def _decide_depth(self, depth: int, left: int) -> Iterator[BranchAllocation]:
        candidates = sorted((each for each in self._waiting if each[0] == depth), key=self._draws.__getitem__)
        num_results = len(candidates)
        share = left * num_results / (num_results + self._expected_below(depth, num_results))
        open_here = min(left, math.floor(share + self.rounding))
        most = max(self._waiting[candidate] for candidate in candidates)
        chance = min(1.0, _expected_takers(share, most) / num_results)
        for candidate in candidates:
            children = min(self._waiting.pop(candidate), open_here)
            open_here -= children
            branch = BranchAllocation(candidate[1], depth, children)
            self._chances[candidate] = chance
            if children:
                self._granted[candidate] = children
                self._used += children
                self._alive.update(dict.fromkeys(branch.child_keys, depth))
            yield branch

    def _expected_below(self, depth: int, num_results: int) -> float:
        """Return the number of results expected below a depth that has `num_results`: in the paired run's proportion."""
        at, *below = self.quota.results[depth - 1 :] or (0,)
        return num_results * sum(below) / at if at else 0.0


def _expected_takers(share: float, most: int) -> float:
    """Return the expected number of results that take `share` children, rounded at random, of which each takes up to `most`."""
    whole = math.floor(share)
    up = share - whole
    return (1 - up) * math.ceil(whole / most) + up * math.ceil((whole + 1) / most)
