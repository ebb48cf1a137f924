"""Growing the tree of one problem: every trajectory advances on its own, and branches as the budget allows."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ramify.core.draws import permutation, stream, uniform
from ramify.core.errors import EngineError
from ramify.core.messages import Calls, Malformed, Problem, ToolSpec
from ramify.core.protocols import ToolSession
from ramify.core.records import BranchCandidate, Finish
from ramify.core.tree import (
    BranchDecision,
    Entropy,
    Node,
    NodePath,
    Source,
    StopReason,
    Tree,
    TreeKey,
    make_tree,
    node_id,
)
from ramify.rollout.grants import BranchKey, Grant, GrantBook
from ramify.rollout.settings import AgentParts
from ramify.rollout.turn import Turn, run_calls, write_turn


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a trajectory stands: just before its next turn.

    Attributes:
        key: Its place in the order of grants; None for a top-up, which never branches.
        path: Of the policy node that comes next.
        context: Tokens so far.
        spent: Tokens after the prompt.
        calls: Tool calls made.
        depth: Tool results on the path.
        decided: Of these, how many the branching rule has decided on.
        baseline: Entropy of the first k tokens of its root, once written.
        history: Decisions on its path.
        sessions: Its tools' states.
    """

    key: BranchKey | None
    path: NodePath
    context: tuple[int, ...]
    spent: int
    calls: int
    depth: int
    decided: int
    baseline: Entropy | None
    history: tuple[BranchDecision, ...]
    sessions: Mapping[str, ToolSession]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A walk, forked at a tool result, that waits for its grant."""

    walk: Walk
    forks: tuple[Mapping[str, ToolSession], ...]


async def grow_trees(
    parts: AgentParts,
    problems: Sequence[Problem],
    step: int,
    on_tree: Callable[[Tree], None] | None = None,
) -> tuple[Tree, ...]:
    """Grow one tree for each problem, side by side; the trees come in the order of the problems.

    Args:
        parts: The agent.
        problems: One batch.
        step: Of the run; with the place in the batch it names the draws.
        on_tree: Called with each tree as soon as it is whole (progress).
    """
    in_flight = asyncio.Semaphore(parts.max_trees or max(1, len(problems)))

    async def grow(slot: int, problem: Problem) -> Tree:
        async with in_flight:
            tree = await TreeGrower(parts, problem, TreeKey(step, slot)).grow()
        if on_tree is not None:
            on_tree(tree)
        return tree

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(grow(slot, problem)) for slot, problem in enumerate(problems)]
    except BaseExceptionGroup as failures:
        raise _first(failures) from failures
    return tuple(task.result() for task in tasks)


def _first(failure: BaseException) -> BaseException:
    """The first cause of a failure; the trajectories beside it were only cancelled."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


class TreeGrower:
    """Grows one tree."""

    def __init__(self, parts: AgentParts, problem: Problem, key: TreeKey) -> None:
        self._parts = parts
        self._problem = problem
        self._key = key
        self._nodes: list[Node] = []
        self._decisions: dict[str, BranchDecision] = {}
        self._candidates: dict[tuple[BranchKey, int], _Candidate] = {}
        self._opened: list[dict[str, ToolSession]] = []
        self._specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in parts.tools.values())
        # A rule that never wants a child is not asked: what it "decided" would look like a rule that is stuck.
        self._may_branch = parts.brancher.max_children > 0 and all(spec.forks for spec in self._specs)
        self._num_roots = parts.brancher.num_roots(parts.limits.n, ())
        self._next_root = self._num_roots
        self._book = GrantBook(
            parts.limits.n - self._num_roots,
            parts.limits.max_calls,
            parts.brancher.max_children if self._may_branch else 0,
        )

    async def grow(self) -> Tree:
        """Run until every trajectory has ended."""
        prompt = self._parts.renderer.start(self._problem, self._specs)
        if len(prompt) >= self._parts.engine.info().context_tokens:
            raise EngineError(
                f"problem {self._problem.id!r}: the prompt has {len(prompt)} tokens, the engine's context "
                f"{self._parts.engine.info().context_tokens}"
            )
        self._nodes.append(Node("", (), None, Source.PROMPT, prompt, self._parts.renderer.decode(prompt)))
        name = stream(
            self._parts.run_seed, self._key.step, self._key.slot, self._key.attempt, self._problem.id, "roots"
        )
        ranks = permutation(name, self._num_roots)
        try:
            async with asyncio.TaskGroup() as self._group:
                for root in range(self._num_roots):
                    rank = int(ranks[root])
                    self._book.start_root(rank)
                    self._spawn_root(root, (rank,))
                self._settle()
        finally:
            # Trajectories close their own sessions as they end; after a failure some never began, or were only
            # half opened or half forked.
            await _close(self._opened)
        return make_tree(self._problem, self._key, self._nodes, list(self._decisions.values()))

    def _spawn_root(self, root: int, key: BranchKey | None) -> None:
        walk = Walk(key, (root,), self._nodes[0].token_ids, 0, 0, 0, 0, None, (), {})
        self._spawn(walk)

    def _spawn(self, walk: Walk) -> None:
        task = self._group.create_task(self._run(walk))
        self._parts.live.enter()
        # Not at the end of `_run`: a task that is cancelled before it first runs never enters its body.
        task.add_done_callback(lambda _: self._parts.live.leave())

    async def _run(self, walk: Walk) -> None:
        try:
            if not walk.sessions:
                walk = replace(walk, sessions=await self._open())
            await self._advance(walk)
        finally:
            await _close((walk.sessions,))

    async def _open(self) -> Mapping[str, ToolSession]:
        sessions: dict[str, ToolSession] = {}
        self._opened.append(sessions)
        for name, tool in self._parts.tools.items():
            sessions[name] = await tool.open(self._problem)
        return sessions

    async def _fork(self, sessions: Mapping[str, ToolSession]) -> Mapping[str, ToolSession]:
        copies: dict[str, ToolSession] = {}
        self._opened.append(copies)
        for name, session in sessions.items():
            copies[name] = await session.fork()
        return copies

    async def _advance(self, walk: Walk) -> None:
        going: Walk | None = walk
        while going is not None:
            walk = going
            going = await self._step(walk)
        if walk.key is not None:
            self._book.finish(walk.key)
            self._settle()

    async def _step(self, walk: Walk) -> Walk | None:
        """One turn and its tool calls; None when the trajectory has ended."""
        room = self._room(walk)
        asks = walk.key is not None and walk.depth > walk.decided and self._may_branch
        # Also when the budget is spent already: whether it is depends on who was fast, and requests must not.
        probing = asks and self._book.budget > 0
        turn = await write_turn(
            self._parts,
            self._key,
            self._problem.id,
            walk.path,
            walk.context,
            room,
            partial(self._decide, walk) if probing else None,
        )
        if asks and not probing and turn.entropy is not None:
            await self._decide(walk, turn.entropy)
        if asks and turn.entropy is not None:
            # Grants are not known in logical time, so later decisions see the plan and never what was taken.
            decision = replace(self._decisions[node_id(walk.path[:-1])], taken=0)
            walk = replace(walk, history=(*walk.history, decision), decided=walk.depth)
        if walk.baseline is None:
            walk = replace(walk, baseline=turn.entropy)
        return await self._after_turn(walk, turn, room)

    async def _after_turn(self, walk: Walk, turn: Turn, room: int) -> Walk | None:
        text = self._parts.renderer.decode(turn.token_ids)
        parsed = self._parts.renderer.parse(text)
        if turn.finish is Finish.LENGTH and isinstance(parsed, Malformed):
            self._end(walk, turn, text, StopReason.TOKENS)
            return None
        if not isinstance(parsed, Calls):
            stop = StopReason.MALFORMED if isinstance(parsed, Malformed) else StopReason.ANSWERED
            self._end(walk, turn, text, stop)
            return None
        identifier = node_id(walk.path)
        calls = tuple(replace(c, id=f"{identifier}:{i}") for i, c in enumerate(parsed.calls))
        if walk.calls + len(calls) > self._parts.limits.max_calls:
            self._end(walk, turn, text, StopReason.CALLS)
            return None
        results = await run_calls(self._parts, self._key, identifier, calls, walk.sessions)
        answer = self._parts.renderer.after(results)
        if len(turn.token_ids) + len(answer) >= room:
            self._end(walk, turn, text, StopReason.TOKENS)
            return None
        caller = replace(self._policy_node(walk, turn, text, None), calls=calls)
        path = (*walk.path, 0)
        self._nodes += [
            caller,
            Node(
                node_id(path),
                path,
                caller.id,
                Source.TOOL,
                answer,
                self._parts.renderer.decode(answer),
                results=results,
            ),
        ]
        return replace(
            walk,
            path=(*path, 0),
            context=walk.context + turn.token_ids + answer,
            spent=walk.spent + len(turn.token_ids) + len(answer),
            calls=walk.calls + len(calls),
            depth=walk.depth + 1,
        )

    def _room(self, walk: Walk) -> int:
        """Tokens that may still be added."""
        context = self._parts.engine.info().context_tokens - len(walk.context)
        return min(self._parts.limits.max_tokens - walk.spent, context)

    def _end(self, walk: Walk, turn: Turn, text: str, stop: StopReason) -> None:
        self._nodes.append(self._policy_node(walk, turn, text, stop))

    def _policy_node(self, walk: Walk, turn: Turn, text: str, stop: StopReason | None) -> Node:
        return Node(
            id=node_id(walk.path),
            path=walk.path,
            parent=node_id(walk.path[:-1]),
            source=Source.POLICY,
            token_ids=turn.token_ids,
            text=text,
            behavior_logprobs=turn.logprobs,
            entropy=turn.entropy,
            policy_version=turn.policy_version,
            stop=stop,
        )

    async def _decide(self, walk: Walk, entropy: Entropy) -> None:
        """Put the tool result before `walk`'s turn to the rule; fork now, while the tools' state is its own."""
        assert walk.key is not None
        assert walk.baseline is not None
        place = walk.path[:-1]
        name = stream(
            self._parts.run_seed,
            self._key.step,
            self._key.slot,
            self._key.attempt,
            self._problem.id,
            place,
            "branch",
        )
        candidate = BranchCandidate(place, walk.depth, entropy, walk.baseline, uniform(name))
        proposal = self._parts.brancher.propose(candidate, walk.history)
        decision = BranchDecision(
            node_id(place),
            walk.depth,
            candidate.rise,
            proposal.probability,
            proposal.children,
            0,
            proposal.entropy_acted,
        )
        self._decisions[decision.node] = decision
        if proposal.children and not self._book.spent:
            forks = [await self._fork(walk.sessions) for _ in range(proposal.children)]
            branch = replace(walk, history=(*walk.history, decision), decided=walk.depth)
            self._candidates[walk.key, walk.depth] = _Candidate(branch, tuple(forks))
        self._book.resolve(walk.key, walk.depth, proposal.children)
        self._settle()

    def _settle(self) -> None:
        settlement = self._book.settle()
        for grant in settlement.grants:
            candidate = self._candidates.pop((grant.key, grant.depth), None)
            if candidate is not None:
                self._branch(candidate, grant)
        for _ in range(settlement.top_ups):
            self._spawn_root(self._next_root, None)
            self._next_root += 1

    def _branch(self, candidate: _Candidate, grant: Grant) -> None:
        walk, children = candidate.walk, grant.children
        place = node_id(walk.path[:-1])
        self._decisions[place] = replace(self._decisions[place], taken=children)
        for index, key in enumerate(grant.child_keys, start=1):
            path = (*walk.path[:-1], index)
            self._spawn(replace(walk, key=key, path=path, sessions=candidate.forks[index - 1]))
        if children < len(candidate.forks):
            self._group.create_task(_close(candidate.forks[children:]))


async def _close(groups: Sequence[Mapping[str, ToolSession]]) -> None:
    for sessions in groups:
        for session in sessions.values():
            await session.close()
