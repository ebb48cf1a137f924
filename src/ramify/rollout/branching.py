"""The branch budget of a problem, spent in logical time so that the tree does not depend on latencies; the rule's decisions.

A candidate is a tool result on a trajectory. Candidates are ordered by a key that does not depend on any clock:
(tool results on the path, seeded rank of the root, place among the branches). A candidate that wants children is
granted as soon as there is room besides what smaller keys hold and the most that they could still claim. It is
refused once smaller keys hold the whole budget. The parent's own continuation never waits for this. Budget that
branches can no longer use goes to fresh trajectories from the prompt (top-ups), which never branch.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ramify.core.draws import permutation, stream, uniform
from ramify.core.errors import ConfigError
from ramify.core.messages import Problem
from ramify.core.protocols import EnvironmentSession, Event
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, Trajectory, TreeKey, node_id
from ramify.rollout.calls import Failure
from ramify.rollout.sessions import SessionKeeper
from ramify.rollout.settings import AgentParts
from ramify.rollout.turn import BranchKey, TrajectoryState


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
    """What can be decided now: grants and refusals in order, and the number of top-ups to start."""

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

    def resolve(self, key: BranchKey, depth: int, wanted: int) -> None:
        """Note that the rule wants `wanted` children at tool result `depth` of trajectory `key`."""
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
            at_same_depth = other < key
            claims += self._growth(depth - (0 if at_same_depth else 1) - done, budget) - 1
        for (other_depth, other), wanted in self._waiting.items():
            if (other_depth, other) < (depth, key):
                claims += wanted * self._growth(depth - other_depth, budget)
        return claims


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A state, forked where the tree could branch, that waits for its grant; times are on the event loop's clock.

    A fork is None if the branch replays its path.
    """

    state: TrajectoryState
    forks: tuple[EnvironmentSession | Failure | None, ...]
    since: float


class Branching:
    """The rule, the budget and the candidates of one tree.

    The number of roots is known at once, or when the roots that the rule monitors have ended. Until then nothing is
    granted, and no trajectory waits for that.
    """

    def __init__(
        self,
        parts: AgentParts,
        problem: Problem,
        key: TreeKey,
        keeper: SessionKeeper,
        start_root: Callable[[int, BranchKey | None], None],
        start_branch: Callable[[TrajectoryState], None],
    ) -> None:
        """Prepare one tree.

        Args:
            parts: The agent.
            problem: The problem to solve.
            key: Key of the tree.
            keeper: Holds the environment's sessions.
            start_root: Starts a root, given its index and its place in the order of grants (None: it never
                branches).
            start_branch: Starts a branch.

        Raises:
            ConfigError: The rule's numbers do not fit n or each other.
        """
        self._parts = parts
        self._problem = problem
        self._key = key
        self._keeper = keeper
        self._start_root = start_root
        self._start_branch = start_branch
        self._decisions: dict[str, BranchDecision] = {}
        self._places: dict[str, tuple[BranchKey, int]] = {}
        self._candidates: dict[tuple[BranchKey, int], _Candidate] = {}
        brancher = parts.brancher
        # A rule that never wants a child is not asked: in the metrics it would look like a rule that is stuck.
        self.asks = brancher.max_children > 0 and parts.environment.branches != "never"
        if self.asks and brancher.probe_tokens < 1:
            raise ConfigError(f"branching: probe_tokens = {brancher.probe_tokens}, expected at least 1")
        most = parts.limits.max_calls + parts.environment.max_observations
        self._budget = BranchBudget(most, brancher.max_children if self.asks else 0)
        self._first = self._count(brancher.first_roots(parts.limits.n), max(1, brancher.num_monitor))
        self._ranks = self._root_ranks()
        self._monitored: dict[int, Trajectory] = {}
        self._next_root = 0

    def start(self) -> None:
        """Start the first roots."""
        self._add_roots(self._first)
        if not self._parts.brancher.num_monitor:
            self._open_budget()

    def root_ended(self, root: int, trajectory: Trajectory) -> None:
        """Note that a root's own trajectory has ended; the rule may monitor it."""
        if root >= self._parts.brancher.num_monitor:
            return
        self._monitored[root] = trajectory
        if len(self._monitored) == self._parts.brancher.num_monitor:
            self._open_budget()

    def ended(self, key: BranchKey | None) -> None:
        """Note that a trajectory has ended and can claim no more budget."""
        if key is not None:
            self._budget.finish(key)
            self._allocate()

    async def decide(self, state: TrajectoryState, turns: tuple[Entropy, ...]) -> BranchDecision:
        """Ask the rule about the tool result before `state`'s turn, and fork the sessions before the parent's next call.

        Args:
            state: Where a branch would continue; its path is that of the node at which the branch would start.
            turns: Entropies of all turns so far, the one after the result included.

        Returns:
            The plan. Later decisions see the plan and never what was granted, which is not known in logical time.
        """
        assert state.key is not None
        path, key = state.path, self._key
        name = stream(self._parts.run_seed, key.step, key.slot, key.attempt, self._problem.id, path, "branch")
        candidate = BranchCandidate(path, state.depth, key.slot, turns, state.own_from, uniform(name))
        proposal, undecided = self._propose(candidate, state)
        decision = BranchDecision(
            node_id(path),
            state.depth,
            candidate.entropy_delta,
            proposal.probability,
            proposal.children,
            0,
            proposal.entropy_acted,
            undecided,
            draw=candidate.draw,
        )
        self._decisions[decision.node] = decision
        self._places[decision.node] = state.key, state.depth
        if proposal.children and not self._budget.spent:
            forks = [await self._fork(state, index) for index in range(1, proposal.children + 1)]
            branch = replace(state.after_turn(None, decision), own_from=len(state.turns))
            now = asyncio.get_running_loop().time()
            self._candidates[state.key, state.depth] = _Candidate(branch, tuple(forks), now)
        self._budget.resolve(state.key, state.depth, proposal.children)
        self._allocate()
        return decision

    def finished_decisions(self) -> list[BranchDecision]:
        """Return all decisions with the budget that was left for them; call it when every trajectory has ended."""
        return [
            replace(decision, budget_left=self._budget.left_for(*self._places[node]))
            for node, decision in self._decisions.items()
        ]

    async def _fork(self, state: TrajectoryState, index: int) -> EnvironmentSession | Failure | None:
        if self._parts.environment.branches == "replay":
            return None
        assert not isinstance(state.session, Failure | None)
        key = self._key
        seed = stream(
            self._parts.run_seed, key.step, key.slot, key.attempt, self._problem.id, state.path, "fork", index
        )
        return await self._keeper.fork(state.session, seed)

    def dropped(self, state: TrajectoryState) -> None:
        """Note that a granted branch could not get its state; a fresh trajectory from the prompt takes its place."""
        assert state.key is not None
        node = node_id(state.path[:-1])
        self._decisions[node] = replace(self._decisions[node], taken=self._decisions[node].taken - 1)
        self._start_root(self._next_root, None)
        self._next_root += 1
        self.ended(state.key)

    def skip(self, state: TrajectoryState) -> None:
        """Decide against a branch after this result, because its turn ended within the shared tokens."""
        assert state.key is not None
        self._budget.resolve(state.key, state.depth, 0)
        self._allocate()

    def _propose(self, candidate: BranchCandidate, state: TrajectoryState) -> tuple[Proposal, bool]:
        rule = self._parts.brancher
        proposal = rule.propose(candidate, state.history)
        if not 0 <= proposal.children <= rule.max_children:
            raise ConfigError(f"branching: {proposal.children} children, expected 0 to {rule.max_children}")
        ends = candidate.extremes
        if ends is None:
            return proposal, False
        least, greatest = (rule.propose(end, state.history).children for end in ends)
        return proposal, least != greatest

    def _count(self, roots: int, least: int) -> int:
        n = self._parts.limits.n
        if not least <= roots <= n:
            raise ConfigError(f"branching: {roots} roots, expected {least} to n = {n}")
        return roots

    def _open_budget(self) -> None:
        n = self._parts.limits.n
        monitor = [self._monitored[root] for root in sorted(self._monitored)]
        roots = self._count(self._parts.brancher.num_roots(n, monitor), self._first)
        self._add_roots(roots)
        self._budget.open(n - roots)
        self._allocate()

    def _root_ranks(self) -> tuple[int, ...]:
        n, key = self._parts.limits.n, self._key
        if self._parts.brancher.keeps_slot_order:
            return tuple(range(n))
        name = stream(self._parts.run_seed, key.step, key.slot, key.attempt, self._problem.id, "roots")
        return tuple(permutation(name, n).tolist())

    def _add_roots(self, until: int) -> None:
        for root in range(self._next_root, until):
            key = (self._ranks[root],)
            self._budget.start_root(key)
            self._start_root(root, key)
        self._next_root = until

    def _allocate(self) -> None:
        allocation = self._budget.allocate()
        for branch in allocation.branches:
            candidate = self._candidates.pop((branch.key, branch.depth), None)
            if candidate is not None:
                self._start_branches(candidate, branch)
        for root in range(self._next_root, self._next_root + allocation.top_ups):
            self._start_root(root, None)
        self._next_root += allocation.top_ups

    def _start_branches(self, candidate: _Candidate, allocated: BranchAllocation) -> None:
        state, children = candidate.state, allocated.children
        node = node_id(state.path)
        waited = asyncio.get_running_loop().time() - candidate.since
        self._decisions[node] = replace(self._decisions[node], taken=children)
        self._parts.events.emit(
            Event(
                "grant",
                (self._key.step, self._key.slot),
                node,
                waited,
                {"children": children},
                candidate.since,
            )
        )
        # The wait for the grant does not count towards the branch's deadline.
        deadline = None if state.deadline is None else state.deadline + waited
        for index, key in enumerate(allocated.child_keys, start=1):
            self._start_branch(
                replace(
                    state,
                    key=key,
                    path=(*state.path, index),
                    session=candidate.forks[index - 1],
                    deadline=deadline,
                )
            )
        self._keeper.close(*(fork for fork in candidate.forks[children:] if fork is not None))
