"""The decisions of a branching rule on the candidates of one tree, and the branches that its budget grants them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from ramify.core.draws import permutation, stream, uniform
from ramify.core.errors import ConfigError
from ramify.core.messages import Problem
from ramify.core.protocols import EnvironmentSession, Event
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, Trajectory, TreeKey, node_id
from ramify.rollout.branch_budget import BranchAllocation, BranchBudget, QuotaBudget
from ramify.rollout.calls import Failure
from ramify.rollout.sessions import SessionKeeper
from ramify.rollout.settings import AgentParts
from ramify.rollout.turn import BranchKey, TrajectoryState


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
        self._positions: dict[str, tuple[BranchKey, int]] = {}
        self._candidates: dict[tuple[BranchKey, int], _Candidate] = {}
        brancher = parts.brancher
        # A rule that never wants a branch decides nothing: in the metrics its decisions would look like those of a stuck rule.
        self.is_active = brancher.max_children > 0 and parts.environment.branches != "never"
        if self.is_active and brancher.probe_tokens < 1:
            raise ConfigError(f"branching: probe_tokens = {brancher.probe_tokens}, expected at least 1")
        self._budget = self._make_budget()
        self._first_roots = self._check_roots(
            brancher.first_roots(parts.limits.n), max(1, brancher.num_monitor)
        )
        self._ranks = self._root_ranks()
        self._monitored: dict[int, Trajectory] = {}
        self._next_root = 0

    def _make_budget(self) -> BranchBudget:
        parts, key, name = self._parts, self._key, self._problem.id
        most = parts.limits.max_calls + parts.environment.max_observations
        quota = parts.brancher.quota(key, name) if self.is_active else None
        if quota is None:
            return BranchBudget(most, parts.brancher.max_children if self.is_active else 0)
        rounding = uniform(stream(parts.run_seed, key.step, key.slot, key.attempt, name, "quota"))
        return QuotaBudget(most, parts.brancher.max_children, quota=quota, rounding=rounding)

    def start(self) -> None:
        """Start the first roots."""
        self._add_roots(self._first_roots)
        if not self._parts.brancher.num_monitor:
            self._open_budget()

    def root_ended(self, root: int, trajectory: Trajectory) -> None:
        """Note that a root's own trajectory has ended; the rule may monitor it."""
        if root >= self._parts.brancher.num_monitor:
            return
        self._monitored[root] = trajectory
        if len(self._monitored) == self._parts.brancher.num_monitor:
            self._open_budget()

    def trajectory_ended(self, key: BranchKey | None) -> None:
        """Note that a trajectory has ended and can claim no more budget."""
        if key is not None:
            self._budget.finish(key)
            self._allocate()

    async def decide(self, state: TrajectoryState, turns: tuple[Entropy, ...]) -> BranchDecision:
        """Let the rule decide on the tool result before `state`'s turn, and fork the sessions before the parent's next call.

        Args:
            state: Where a branch would continue; its path is that of the node at which the branch would start.
            turns: Entropies of all turns so far, the one after the result included.

        Returns:
            The plan. Later decisions see the plan and never what was granted, which is not known in logical time.
        """
        assert state.key is not None
        path, key = state.path, self._key
        name = stream(self._parts.run_seed, key.step, key.slot, key.attempt, self._problem.id, path, "branch")
        candidate = BranchCandidate(
            path, state.depth, key.slot, turns, state.own_from, uniform(name), key.step, state.ambiguous
        )
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
        self._positions[decision.node] = state.key, state.depth
        if proposal.children and not self._budget.spent:
            # Fork before the grant is known: the parent goes on at once and changes its session.
            forks = [await self._fork(state, index) for index in range(1, proposal.children + 1)]
            branch = replace(state.after_turn(None, decision), own_from=len(state.turns))
            now = asyncio.get_running_loop().time()
            self._candidates[state.key, state.depth] = _Candidate(branch, tuple(forks), now)
        self._budget.resolve(state.key, state.depth, proposal.children, candidate.draw)
        self._allocate()
        return decision

    def finished_decisions(self) -> list[BranchDecision]:
        """Return all decisions with the budget that was left for them; call it when every trajectory has ended."""
        return [self._with_budget_left(decision) for decision in self._decisions.values()]

    def _with_budget_left(self, decision: BranchDecision) -> BranchDecision:
        key, depth = self._positions[decision.node]
        decision = replace(decision, budget_left=self._budget.left_for(key, depth))
        chance = self._budget.chance(key, depth)
        # Under a quota the rule wants every branch, and the budget draws which it gets.
        return decision if chance is None else replace(decision, probability=chance, planned=decision.taken)

    async def _fork(self, state: TrajectoryState, index: int) -> EnvironmentSession | Failure | None:
        if self._parts.environment.branches == "replay":
            return None
        assert not isinstance(state.session, Failure | None)
        key = self._key
        seed = stream(
            self._parts.run_seed, key.step, key.slot, key.attempt, self._problem.id, state.path, "fork", index
        )
        return await self._keeper.fork(state.session, seed)

    def replace_branch(self, state: TrajectoryState) -> None:
        """Start a fresh trajectory from the prompt in place of a granted branch that got no session."""
        assert state.key is not None
        node = node_id(state.path[:-1])
        self._decisions[node] = replace(self._decisions[node], taken=self._decisions[node].taken - 1)
        # Without a place in the order of grants, so that it can claim nothing that was granted to others.
        self._start_root(self._next_root, None)
        self._next_root += 1
        self.trajectory_ended(state.key)

    def skip(self, state: TrajectoryState) -> None:
        """Record that nothing branches after this result, without a decision of the rule, because no probe follows it."""
        assert state.key is not None
        self._budget.resolve(state.key, state.depth, 0)
        self._allocate()

    def _propose(self, candidate: BranchCandidate, state: TrajectoryState) -> tuple[Proposal, bool]:
        rule = self._parts.brancher
        proposal = rule.propose(candidate, state.history)
        if not 0 <= proposal.children <= rule.max_children:
            raise ConfigError(f"branching: {proposal.children} children, expected 0 to {rule.max_children}")
        # An engine that returns only the top K logprobs bounds the entropy: does the decision differ between the bounds?
        ends = candidate.extremes
        if ends is None:
            return proposal, False
        least, greatest = (rule.propose(end, state.history).children for end in ends)
        return proposal, least != greatest

    def _check_roots(self, roots: int, least: int) -> int:
        n = self._parts.limits.n
        if not least <= roots <= n:
            raise ConfigError(f"branching: {roots} roots, expected {least} to n = {n}")
        return roots

    def _open_budget(self) -> None:
        n = self._parts.limits.n
        monitor = [self._monitored[root] for root in sorted(self._monitored)]
        roots = self._check_roots(self._parts.brancher.num_roots(n, monitor), self._first_roots)
        # Roots first: what they can claim must be known before anything is granted.
        self._add_roots(roots)
        self._budget.open(n - roots)
        self._allocate()

    def _root_ranks(self) -> tuple[int, ...]:
        n, key = self._parts.limits.n, self._key
        if self._parts.brancher.keeps_slot_order:
            return tuple(range(n))
        # In random order: a scarce budget goes to the first, and root 0 would get more of it in every tree.
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
