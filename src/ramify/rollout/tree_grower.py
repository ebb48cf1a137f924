"""Growing the tree of one problem: every trajectory advances on its own, and branches as the budget allows."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ramify.core.draws import stream
from ramify.core.errors import ContentError
from ramify.core.messages import MalformedTurn
from ramify.core.protocols import EnvironmentSession
from ramify.core.records import Finish
from ramify.core.tree import (
    BranchDecision,
    Entropy,
    Node,
    NodePath,
    Source,
    StopReason,
    Trajectory,
    Tree,
    make_tree,
    node_id,
)
from ramify.rollout.branching import Branching
from ramify.rollout.calls import Failure
from ramify.rollout.plan import (
    TreeRequest,
    content_errors,
    failed_tree,
    prompt_of,
    report_failed_problem,
    state_after,
    with_opening,
    without_opening,
)
from ramify.rollout.rewriting import RewrittenContext, rewrite_context
from ramify.rollout.sessions import Reply, SessionKeeper, World, reply_to_turn
from ramify.rollout.settings import AgentParts
from ramify.rollout.slot_gate import Start, TakeSlot
from ramify.rollout.turn import (
    BranchKey,
    TrajectoryState,
    Turn,
    parsed_node,
    report_turn,
    turn_request,
    write,
    write_probed,
)

Value = TypeVar("Value")

_OPENING_ATTEMPTS = 3
"""How often the first session of a tree is opened before its problem fails."""


class TreeGrower:
    """Grows one tree."""

    def __init__(
        self,
        parts: AgentParts,
        request: TreeRequest,
        deadline: float | None,
        take_slot: TakeSlot,
    ) -> None:
        """Prepare one tree; `deadline` is the step's deadline on the event loop's clock."""
        self._parts = parts
        self._request = request
        self._problem = request.problem
        self._key = request.key
        # Recorded nodes that all trajectories continue, in place of a prompt; usually none.
        self._recorded = request.above
        self._deadline = deadline
        self._take_slot = take_slot
        self._nodes: dict[str, Node] = {}
        self._contexts: dict[str, tuple[int, ...]] = {}
        self._start_path: NodePath = ()
        self._opened: EnvironmentSession | None = None
        self._opening = ""

    async def grow(self) -> Tree:
        """Grow the tree until every trajectory has ended; returns a failed tree if the problem's content cannot be used.

        Raises:
            RamifyError: An error of the run.
        """
        environment, key = self._parts.environment, self._key
        # Without the attempt, so that a tree that continues from a node of this one begins in the same world.
        seed = stream(self._parts.run_seed, key.step, key.slot, self._problem.id, "environment")
        bare = self._problem
        if environment.opens and self._recorded:
            bare, self._opening = without_opening(bare)
        self._keeper = SessionKeeper(environment, bare, seed)
        self._world = World(self._parts, key, self._keeper)
        try:
            if environment.opens and not self._recorded:
                await self._open_first_session()
            tree = await self._grow_trajectories(prompt_of(self._parts, self._problem, self._recorded))
        except ContentError as error:
            self._world.failures.append(str(error))
            tree = failed_tree(self._request.problem, key, self._recorded, self._parts.limits.n)
        finally:
            # Trajectories close their sessions when they end; after a failure some are still open.
            await self._keeper.close_all()
        if tree.has_failed:
            report_failed_problem(self._parts.events, key, self._problem, self._world.failures[0])
        return tree

    async def _grow_trajectories(self, prompt: tuple[int, ...]) -> Tree:
        if self._recorded:
            self._start_path = self._recorded[-1].path
            state = state_after(self._parts, self._problem, self._recorded)
            contexts = Trajectory(self._problem, self._recorded).contexts
            for node, context in zip(self._recorded, contexts, strict=True):
                self._add(node)
                self._contexts[node.id] = context.token_ids
        else:
            self._add(Node("", (), None, Source.PROMPT, prompt, self._parts.renderer.decode(prompt)))
            state = TrajectoryState(None, (), prompt)
        group = asyncio.TaskGroup()
        self._branching = Branching(
            self._parts,
            self._problem,
            self._key,
            self._keeper,
            partial(self._start_root, group, state),
            partial(self._spawn, group),
        )
        async with group:
            self._branching.start()
        tree = make_tree(
            self._problem,
            self._key,
            list(self._nodes.values()),
            self._branching.finished_decisions(),
            node_id(self._start_path),
        )
        self._audit(tree)
        return tree

    async def _open_first_session(self) -> None:
        """Open the session of the first root, and add the environment's opening message to the prompt.

        Raises:
            ContentError: No session can be opened, or its opening cannot be used.
        """
        # Counted as live already now: in a deterministic run the engine must not step before this tree's roots can ask it.
        self._parts.live.enter()
        try:
            session = await self._keeper.open()
            for _ in range(_OPENING_ATTEMPTS - 1):
                # No second attempt after a timeout: whatever hangs would hold another thread.
                if not isinstance(session, Failure) or session.raised is None:
                    break
                session = await self._keeper.open()
        finally:
            self._parts.live.leave()
        if isinstance(session, Failure):
            self._world.report_failure("open", "", session)
            raise ContentError(session.reason)
        self._opened, self._opening = session, session.opening
        self._problem = with_opening(self._problem, self._opening, self._parts.limits.max_result_chars)

    def _start_root(
        self, group: asyncio.TaskGroup, begin: TrajectoryState, root: int, key: BranchKey | None
    ) -> None:
        seconds = self._parts.limits.trajectory_seconds
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self._spawn(group, replace(begin, key=key, path=(*self._start_path, root), deadline=deadline))

    def _spawn(self, group: asyncio.TaskGroup, state: TrajectoryState) -> None:
        # Live from here on, not from its first turn: in a deterministic run the engine steps only when all live tasks wait for it.
        task = group.create_task(self._run_with_slot(state))
        self._parts.live.enter()
        # Not at the end of `_run_trajectory`, because a task that is cancelled before it first runs never enters its body.
        task.add_done_callback(lambda _: self._parts.live.leave())

    async def _run_with_slot(self, state: TrajectoryState) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with self._take_slot(Start.of(state.key)):
            # The wait for the slot does not count towards the trajectory's deadline.
            own = None if state.deadline is None else state.deadline + (loop.time() - since)
            ends = [time for time in (own, self._deadline) if time is not None]
            await self._run_trajectory(replace(state, deadline=min(ends, default=None)))

    async def _run_trajectory(self, state: TrajectoryState) -> None:
        session = state.session
        if session is None:
            late = self._is_late(state)
            session = None if late else await self._before_deadline(state, self._open_session(state))
        if isinstance(session, Failure):
            parent = node_id(state.path[:-1])
            # If a branch gets no session, a fresh trajectory takes its place. A root without one ends as failed.
            if len(state.path) > len(self._start_path) + 1:
                self._world.report_failure("branch", parent, session)
                self._branching.replace_branch(state)
                return
            self._world.report_failure("open", parent, session)
        if session is None or isinstance(session, Failure):
            leaf = self._end_early(state, StopReason.DEADLINE if session is None else StopReason.FAILED)
        else:
            leaf = await self._run_turns(replace(state, session=session))
            leaf = await self._add_final_reward(session, leaf)
            self._keeper.close(session)
        # The indices of branches start at 1, so a path with only zeros below its root is the root's own trajectory.
        root, *below = leaf.path[len(self._start_path) :]
        if state.key is not None and not any(below):
            self._branching.root_ended(root, self._trajectory(leaf))
        self._branching.trajectory_ended(state.key)

    async def _open_session(self, state: TrajectoryState) -> EnvironmentSession | Failure:
        """Return a session in the state before the next turn: the path's turns are replayed in it."""
        # Root 0 takes the session that was opened for the prompt.
        if state.path == (0,) and self._opened is not None:
            session, self._opened = self._opened, None
            return session
        replayed = await self._world.replay(self._nodes_above(state.path))
        if isinstance(replayed, Failure) or replayed.opening == self._opening:
            return replayed
        self._keeper.close(replayed)
        return Failure(ValueError("the session's opening differs from the one in the prompt"))

    async def _run_turns(self, state: TrajectoryState) -> Node:
        """Sample turns and add their replies until the trajectory has ended; returns its leaf."""
        reached = await self._advance(state)
        while isinstance(reached, TrajectoryState):
            reached = await self._advance(reached)
        return reached

    async def _add_final_reward(self, session: EnvironmentSession, leaf: Node) -> Node:
        """Add the environment's reward of the whole trajectory to that of its leaf; returns the new leaf."""
        if not self._parts.environment.scores:
            return leaf
        reward = await self._world.score(session, self._trajectory(leaf))
        if isinstance(reward, Failure):
            leaf = replace(leaf, stop=StopReason.FAILED)
        else:
            leaf = replace(leaf, reward=leaf.reward + reward)
        self._add(leaf)
        return leaf

    async def _before_deadline(
        self, state: TrajectoryState, action: Coroutine[Any, Any, Value]
    ) -> Value | None:
        """Return what `action` returns, or None once the trajectory's deadline has passed."""
        try:
            async with asyncio.timeout_at(state.deadline) as limit:
                return await action
        except TimeoutError:
            if not limit.expired():
                raise
            return None

    def _is_late(self, state: TrajectoryState) -> bool:
        return state.deadline is not None and asyncio.get_running_loop().time() >= state.deadline

    async def _advance(self, state: TrajectoryState) -> TrajectoryState | Node:
        """Sample one turn, or only its probe, and add its reply; returns the leaf when the trajectory has ended."""
        room = self._tokens_left(state)
        if room < 1:
            return self._end_early(state, StopReason.TOKENS)
        began = asyncio.get_running_loop().time()
        sampling = None if self._is_late(state) else self._sample_turn(state, room)
        sampled = None if sampling is None else await self._before_deadline(state, sampling)
        if sampled is None:
            # Tokens of the unfinished turn are dropped: their number depends on the engine's speed.
            return self._end_early(state, StopReason.DEADLINE)
        turn, decision = sampled
        report_turn(self._parts, self._key, state.path, turn, began)
        state = state.after_turn(turn.entropy, decision)
        # If new weights arrived in the middle of the turn, each policy version's tokens are a node of their own.
        *earlier, last = turn.parts
        for part in earlier:
            state = self._add_part_of_turn(state, self._policy_node(state, part))
        # What is left for the last part: the earlier ones have spent theirs.
        room -= len(turn.token_ids) - len(last.token_ids)
        node = self._policy_node(state, last)
        if self._may_branch(state):
            # This request was for the probe only (`after_probe`). If it ended by length with room left, the turn goes on.
            if turn.finish is Finish.LENGTH and len(last.token_ids) < room:
                return await self._decide_after_probe(state, node)
            # The turn ended within the probe, so branches would have nothing of their own to sample.
            self._branching.skip(state)
            state = replace(state, decided=state.depth)
        try:
            with content_errors("the turn cannot be parsed"):
                node = parsed_node(self._parts.renderer, state, node)
            is_cut = turn.finish is Finish.LENGTH and isinstance(node.turn, MalformedTurn)
            reply = await self._before_deadline(state, self._reply(state, node, is_cut, room))
        except ContentError as error:
            self._world.report_failure("turn", node.id, Failure(error))
            reply = Reply(StopReason.FAILED)
        reply = reply or Reply(StopReason.DEADLINE)
        return self._after_reply(state, replace(node, reward=reply.reward), reply)

    def _may_branch(self, state: TrajectoryState) -> bool:
        """Return True if the branching rule still has to decide on the last result of the path."""
        return state.key is not None and state.depth > state.decided and self._branching.is_active

    async def _sample_turn(self, state: TrajectoryState, room: int) -> tuple[Turn, BranchDecision | None]:
        """Sample the next turn, or only its probe if branches start behind that; returns it with the rule's decision, if any."""
        above = Trajectory(self._problem, self._nodes_above(state.path))
        most = self._parts.limits.max_turn_tokens
        limit = room if most is None else min(room, max(1, most - state.shared))
        request = turn_request(
            self._parts, self._key, above, state.path, state.context, state.shared, limit, state.tools
        )
        if not self._may_branch(state):
            return await write(self._parts, request), None
        if self._parts.branch_at == "after_probe":
            probe_tokens = min(self._parts.brancher.probe_tokens, room)
            return await write(self._parts, replace(request, max_new_tokens=probe_tokens)), None
        decisions: list[BranchDecision] = []

        async def decide(entropy: Entropy) -> None:
            at_result = replace(state, path=state.path[:-1])
            decisions.append(await self._branching.decide(at_result, (*state.turns, entropy)))

        # A probe even if the branch budget is spent: when it is spent depends on latencies, and requests must not.
        turn = await write_probed(self._parts, request, decide)
        return turn, decisions[0]

    async def _decide_after_probe(self, state: TrajectoryState, node: Node) -> TrajectoryState:
        """Add the probe as a node, and let the rule decide whether branches start behind it."""
        probed = self._add_part_of_turn(state, node)
        at_result = replace(probed, path=state.path)
        decision = await self._before_deadline(state, self._branching.decide(at_result, probed.turns))
        # Without a decision the deadline has passed, and the next `_advance` ends the trajectory.
        return probed.after_turn(None, decision)

    def _add_part_of_turn(self, state: TrajectoryState, node: Node) -> TrajectoryState:
        """Add a node that does not end its turn; the next node belongs to the same turn."""
        # If the node ends in the middle of a character, that character belongs to the text of the next node.
        text = node.text.rstrip("\N{REPLACEMENT CHARACTER}")
        self._add(replace(node, text=text))
        return replace(
            state.with_tokens(state.path, node.token_ids),
            shared=state.shared + len(node.token_ids),
            shared_text=state.shared_text + text,
        )

    def _policy_node(self, state: TrajectoryState, part: Turn) -> Node:
        turn = state.context[len(state.context) - state.shared :] + part.token_ids
        return Node(
            id=node_id(state.path),
            path=state.path,
            parent=node_id(state.path[:-1]),
            source=Source.POLICY,
            token_ids=part.token_ids,
            text=self._parts.renderer.decode(turn)[len(state.shared_text) :],
            behavior_logprobs=part.logprobs,
            entropy=part.entropy,
            policy_version=part.policy_version,
            token_entropies=part.token_entropies,
            exact_ids=self._parts.engine.info().exact_ids,
        )

    async def _reply(self, state: TrajectoryState, node: Node, is_cut: bool, room: int) -> Reply:
        """Return the reply to the turn that ends with `node`; `is_cut`: the limit on tokens cut the turn."""
        reply = Reply(StopReason.TOKENS) if is_cut else await reply_to_turn(self._world, state, node)
        # Before the room is checked, and even if a limit ended the turn: a rewritten context may have room again.
        rewritten = await self._rewrite(state, node, reply)
        if rewritten is not None:
            return replace(reply, stop=None, token_ids=rewritten.token_ids, rewritten=rewritten)
        if reply.stop is None and len(node.token_ids) + len(reply.token_ids) >= room:
            return Reply(StopReason.TOKENS, reward=reply.reward)
        return reply

    async def _rewrite(self, state: TrajectoryState, node: Node, reply: Reply) -> RewrittenContext | None:
        """Return the context that a rewriter puts in place of the current one; None if none does."""
        if not self._parts.rewriters or reply.stop in (StopReason.ENDED, StopReason.FAILED):
            return None
        nodes = [replace(node, stop=reply.stop)]
        if reply.stop is None:
            nodes.append(self._tool_node(nodes[0], reply))
        most = self._parts.limits.max_tokens - 1 - state.spent - len(node.token_ids)
        return await rewrite_context(self._parts, self._key, self._trajectory(*nodes), state.tools, most)

    def _after_reply(self, state: TrajectoryState, node: Node, reply: Reply) -> TrajectoryState | Node:
        if reply.stop is not None:
            return self._end(
                state, replace(node, stop=reply.stop, results=reply.results, messages=reply.messages)
            )
        answer = self._tool_node(node, reply)
        self._add(node)
        self._add(answer)
        state = state.with_tokens(state.path, node.token_ids)
        rewritten = reply.rewritten
        if rewritten is not None:
            # A segment ends here and not at a leaf; `_audit` compares its tokens too.
            self._contexts[node.id] = state.context
            state = replace(state, context=rewritten.before)
        state = state.with_tokens(answer.path, answer.token_ids)
        state = replace(
            state,
            calls=state.calls + len(reply.results),
            steps=state.steps + (1 if reply.messages else 0),
            depth=state.depth + (1 if reply.results or reply.messages else 0),
            ambiguous=any(result.ambiguous for result in reply.results),
        )
        return (
            state if rewritten is None or not rewritten.shared else self._inside_turn(state, rewritten.shared)
        )

    def _inside_turn(self, state: TrajectoryState, shared: int) -> TrajectoryState:
        """Return the state in the middle of a turn that began with the last `shared` tokens of the context."""
        if self._may_branch(state):
            # The first tokens of this turn were not sampled after the result, so their entropy says nothing about it.
            self._branching.skip(state)
            state = replace(state, decided=state.depth)
        text = self._parts.renderer.decode(state.context[-shared:]).rstrip("\N{REPLACEMENT CHARACTER}")
        return replace(state, shared=shared, shared_text=text)

    def _tokens_left(self, state: TrajectoryState) -> int:
        """Return the number of tokens that the trajectory and its context still have room for."""
        room = self._parts.engine.info().context_tokens - len(state.context)
        return min(self._parts.limits.max_tokens - state.spent, room)

    def _tool_node(self, caller: Node, reply: Reply) -> Node:
        path = (*caller.path, 0)
        return Node(
            node_id(path),
            path,
            caller.id,
            Source.TOOL,
            reply.token_ids,
            self._parts.renderer.decode(reply.token_ids),
            results=reply.results,
            messages=reply.messages,
            context="parent" if reply.rewritten is None else reply.rewritten.context,
            rewriter="" if reply.rewritten is None else reply.rewritten.by,
        )

    def _add(self, node: Node) -> None:
        self._nodes[node.id] = node

    def _end(self, state: TrajectoryState, leaf: Node) -> Node:
        self._add(leaf)
        self._contexts[leaf.id] = state.context + leaf.token_ids
        return leaf

    def _end_early(self, state: TrajectoryState, stop: StopReason) -> Node:
        """End the trajectory before its next turn; this adds no token."""
        leaf = Node(
            id=node_id(state.path),
            path=state.path,
            parent=node_id(state.path[:-1]),
            source=Source.POLICY,
            token_ids=(),
            text="",
            stop=stop,
        )
        return self._end(state, leaf)

    def _trajectory(self, *last: Node) -> Trajectory:
        """Return the path from the prompt through `last`; the parent of the first of these must be in the tree already."""
        return Trajectory(self._problem, (*self._nodes_above(last[0].path), *last))

    def _nodes_above(self, path: NodePath) -> tuple[Node, ...]:
        """Return the nodes above the one at `path`, from the prompt on."""
        return tuple(self._nodes[node_id(path[:depth])] for depth in range(len(path)))

    def _audit(self, tree: Tree) -> None:
        """Check that there are n trajectories, and that each context is the concatenation of its nodes' tokens."""
        # A bug, not bad content of one problem: better no run than updates on tokens that nobody sampled.
        name, n = f"problem {self._problem.id!r}", self._parts.limits.n
        if len(tree.trajectories) != n:
            raise RuntimeError(f"{name}: the tree has {len(tree.trajectories)} trajectories, expected {n}")
        for trajectory in tree.trajectories:
            for segment in trajectory.segments:
                if segment.token_ids != self._contexts[segment.nodes[-1].id]:
                    raise RuntimeError(
                        f"{name}: the tokens of trajectory {trajectory.leaf.id} are not those of its nodes"
                    )
