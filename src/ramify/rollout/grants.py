"""Spending a problem's branch budget in logical time, so that the tree does not depend on latencies.

A candidate is a tool result on a trajectory. Candidates are ordered by a key that does not depend on any clock:
(tool results on the path, seeded rank of the root, place among the branches). A candidate that wants children is
granted as soon as there is room besides what smaller keys hold and the most that they could still claim. It is
refused once smaller keys hold the whole budget. The parent's own continuation never waits for this. Budget that
branches can no longer use goes to fresh trajectories from the prompt (top-ups), which never branch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

BranchKey = tuple[int, ...]
"""A trajectory's place: (rank of its root, then (depth, index) for each branch that led to it)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """`children` new trajectories may start at tool result `depth` of trajectory `key` (0: refused)."""

    key: BranchKey
    depth: int
    children: int

    @property
    def child_keys(self) -> tuple[BranchKey, ...]:
        """The keys of the new trajectories; the book counts them as alive from the grant on."""
        return tuple((*self.key, self.depth, index) for index in range(1, self.children + 1))


@dataclass(frozen=True, slots=True)
class Settlement:
    """What can be decided now: grants and refusals in order, and the number of top-ups to start."""

    grants: tuple[Grant, ...]
    top_ups: int


@dataclass
class GrantBook:
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
        """Whether nothing is left to decide."""
        return self._budget is not None and self._used + self._top_ups >= self._budget and not self._waiting

    def open(self, budget: int) -> None:
        """Set the budget: the number of trajectories beyond the roots, n - m."""
        self._budget = budget

    def left_for(self, key: BranchKey, depth: int) -> int:
        """The budget that smaller keys left for a candidate at this place; final once all trajectories have ended.

        It depends on what was granted and never on when, so it is the same for all latencies.
        """
        return 0 if self._budget is None else self._budget - self._held_before(depth, key)

    def start_root(self, key: BranchKey) -> None:
        """Count a root that starts as alive."""
        self._alive[key] = 0

    def resolve(self, key: BranchKey, depth: int, wanted: int) -> None:
        """Note that the rule wants `wanted` children at tool result `depth` of trajectory `key`."""
        self._alive[key] = depth
        if wanted:
            self._waiting[depth, key] = wanted

    def finish(self, key: BranchKey) -> None:
        """Note that trajectory `key` has ended and can claim nothing more."""
        del self._alive[key]

    def settle(self) -> Settlement:
        """Decide everything that can be decided now."""
        if self._budget is None:
            return Settlement((), 0)
        grants = tuple(self._decide(self._budget))
        free = self._budget - self._used - self._top_ups - self._claims_of_all(self._budget)
        top_ups = max(0, free)
        self._top_ups += top_ups
        return Settlement(grants, top_ups)

    def _decide(self, budget: int) -> Iterator[Grant]:
        # A grant only takes room from larger keys, so one pass in key order decides everything that can be decided.
        for depth, key in sorted(self._waiting):
            room = budget - self._held_before(depth, key)
            claims = self._claims_before(depth, key, budget)
            wanted = self._waiting[depth, key]
            if room > 0 and room - claims < (wanted if claims else 1):
                continue
            children = max(0, min(wanted, room))
            del self._waiting[depth, key]
            grant = Grant(key, depth, children)
            if children:
                self._granted[depth, key] = children
                self._used += children
                self._alive.update(dict.fromkeys(grant.child_keys, depth))
            yield grant

    def _held_before(self, depth: int, key: BranchKey) -> int:
        return sum(count for place, count in self._granted.items() if place < (depth, key))

    def _growth(self, levels: int, budget: int) -> int:
        """How many trajectories one can become if it branches fully at `levels` tool results: (1 + Z)^levels."""
        # Beyond the budget the exact number does not matter, and the power would grow without bound.
        return int(min((1 + self.fanout) ** min(levels, 64), budget + 1)) if levels > 0 else 1

    def _claims_of_all(self, budget: int) -> int:
        claims = sum(self._growth(self.max_depth - done, budget) - 1 for done in self._alive.values())
        return claims + sum(
            wanted * self._growth(self.max_depth - depth, budget)
            for (depth, _), wanted in self._waiting.items()
        )

    def _claims_before(self, depth: int, key: BranchKey, budget: int) -> int:
        """The most children that candidates with keys smaller than (depth, key) can still be granted."""
        claims = 0
        for other, done in self._alive.items():
            at_same_depth = other < key
            claims += self._growth(depth - (0 if at_same_depth else 1) - done, budget) - 1
        for (other_depth, other), wanted in self._waiting.items():
            if (other_depth, other) < (depth, key):
                claims += wanted * self._growth(depth - other_depth, budget)
        return claims
