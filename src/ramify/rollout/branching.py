"""Branching in one tree: asks the rule about tool results, and starts the branches that the budget allows."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from ramify.core.draws import permutation, stream, uniform
from ramify.core.errors import ConfigError
from ramify.core.messages import Problem
from ramify.core.protocols import Event
from ramify.core.records import BranchCandidate, Proposal
from ramify.core.tree import BranchDecision, Entropy, Trajectory, TreeKey, node_id
from ramify.rollout.grants import BranchKey, Grant, GrantBook
from ramify.rollout.sessions import SessionKeeper, Sessions
from ramify.rollout.settings import AgentParts
from ramify.rollout.walk import Walk


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A walk, forked where the tree could branch, that waits for its grant; times are on the event loop's clock."""

    walk: Walk
    forks: tuple[Sessions, ...]
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
        start_branch: Callable[[Walk], None],
    ) -> None:
        """Prepare one tree.

        Args:
            parts: The agent.
            problem: The problem to solve.
            key: Key of the tree.
            keeper: Holds the tool sessions.
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
        self.asks = brancher.max_children > 0 and all(tool.spec.forks for tool in parts.tools.values())
        if self.asks and brancher.probe_tokens < 1:
            raise ConfigError(f"branching: probe_tokens = {brancher.probe_tokens}, expected at least 1")
        self._book = GrantBook(parts.limits.max_calls, brancher.max_children if self.asks else 0)
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
            self._book.finish(key)
            self._settle()

    async def decide(self, walk: Walk, turns: tuple[Entropy, ...]) -> BranchDecision:
        """Ask the rule about the tool result before `walk`'s turn, and fork the sessions before the parent's next call.

        Args:
            walk: Where a branch would continue; its path is that of the node at which the branch would start.
            turns: Entropies of all turns so far, the one after the result included.

        Returns:
            The plan. Later decisions see the plan and never what was granted, which is not known in logical time.
        """
        assert walk.key is not None
        assert walk.sessions is not None
        place, key = walk.path, self._key
        name = stream(
            self._parts.run_seed, key.step, key.slot, key.attempt, self._problem.id, place, "branch"
        )
        candidate = BranchCandidate(place, walk.depth, key.slot, turns, walk.own_from, uniform(name))
        proposal, undecided = self._propose(candidate, walk)
        decision = BranchDecision(
            node_id(place),
            walk.depth,
            candidate.rise,
            proposal.probability,
            proposal.children,
            0,
            proposal.entropy_acted,
            undecided,
        )
        self._decisions[decision.node] = decision
        self._places[decision.node] = walk.key, walk.depth
        if proposal.children and not self._book.spent:
            forks = [await self._keeper.fork(walk.sessions) for _ in range(proposal.children)]
            branch = replace(walk.heard(None, decision), own_from=len(walk.turns))
            now = asyncio.get_running_loop().time()
            self._candidates[walk.key, walk.depth] = _Candidate(branch, tuple(forks), now)
        self._book.resolve(walk.key, walk.depth, proposal.children)
        self._settle()
        return decision

    def finished_decisions(self) -> list[BranchDecision]:
        """All decisions with the budget that was left for them; call it when every trajectory has ended."""
        return [
            replace(decision, budget_left=self._book.left_for(*self._places[node]))
            for node, decision in self._decisions.items()
        ]

    def skip(self, walk: Walk) -> None:
        """Decide against a branch after this result, because its turn ended within the shared tokens."""
        assert walk.key is not None
        self._book.resolve(walk.key, walk.depth, 0)
        self._settle()

    def _propose(self, candidate: BranchCandidate, walk: Walk) -> tuple[Proposal, bool]:
        rule = self._parts.brancher
        proposal = rule.propose(candidate, walk.history)
        if not 0 <= proposal.children <= rule.max_children:
            raise ConfigError(f"branching: {proposal.children} children, expected 0 to {rule.max_children}")
        ends = candidate.extremes
        if ends is None:
            return proposal, False
        least, greatest = (rule.propose(end, walk.history).children for end in ends)
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
        self._book.open(n - roots)
        self._settle()

    def _root_ranks(self) -> tuple[int, ...]:
        n, key = self._parts.limits.n, self._key
        if self._parts.brancher.keeps_slot_order:
            return tuple(range(n))
        name = stream(self._parts.run_seed, key.step, key.slot, key.attempt, self._problem.id, "roots")
        return tuple(permutation(name, n).tolist())

    def _add_roots(self, until: int) -> None:
        for root in range(self._next_root, until):
            key = (self._ranks[root],)
            self._book.start_root(key)
            self._start_root(root, key)
        self._next_root = until

    def _settle(self) -> None:
        settlement = self._book.settle()
        for grant in settlement.grants:
            candidate = self._candidates.pop((grant.key, grant.depth), None)
            if candidate is not None:
                self._branch(candidate, grant)
        for root in range(self._next_root, self._next_root + settlement.top_ups):
            self._start_root(root, None)
        self._next_root += settlement.top_ups

    def _branch(self, candidate: _Candidate, grant: Grant) -> None:
        walk, children = candidate.walk, grant.children
        place = node_id(walk.path)
        waited = asyncio.get_running_loop().time() - candidate.since
        self._decisions[place] = replace(self._decisions[place], taken=children)
        self._parts.events.emit(
            Event("grant", (self._key.step, self._key.slot), place, waited, {"children": children})
        )
        # The wait for the grant does not count towards the branch's deadline.
        deadline = None if walk.deadline is None else walk.deadline + waited
        for index, key in enumerate(grant.child_keys, start=1):
            self._start_branch(
                replace(
                    walk,
                    key=key,
                    path=(*walk.path, index),
                    sessions=candidate.forks[index - 1],
                    deadline=deadline,
                )
            )
        self._keeper.close(*candidate.forks[children:])
