"""The environment's sessions of one tree, opened, forked, replayed and closed so that none is left open; replies to turns."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ramify.core.json_text import cut_to
from ramify.core.messages import Calls, Final, Message, Observation, ParsedTurn, Problem, ToolResult
from ramify.core.protocols import Environment, EnvironmentSession, Event
from ramify.core.tree import Node, Source, StopReason, Trajectory, TreeKey
from ramify.net.secrets import redact
from ramify.rollout.calls import Failure, first_good, is_paid, issue, run_calls
from ramify.rollout.plan import content_errors
from ramify.rollout.rewriting import RewrittenContext
from ramify.rollout.settings import AgentParts
from ramify.rollout.turn import TrajectoryState
from ramify.runtime.agent_loop import abandon

Value = TypeVar("Value")


@dataclass(slots=True)
class SessionKeeper:
    """Opens, forks and closes the sessions of one tree. If the environment fails or is late, it returns a `Failure`."""

    environment: Environment
    problem: Problem
    seed: int
    _open_sessions: dict[int, EnvironmentSession] = field(default_factory=dict)
    _ending: list["asyncio.Task[object]"] = field(default_factory=list)
    _is_over: bool = False

    async def open(self) -> EnvironmentSession | Failure:
        """Return a session for a new root."""
        return await self._take(partial(self.environment.open, self.problem, self.seed))

    async def fork(self, session: EnvironmentSession, seed: int) -> EnvironmentSession | Failure:
        """Return a fork of `session` in its current state."""

        async def fork() -> EnvironmentSession:
            copy = await session.fork(seed)
            if copy is session:
                raise TypeError("fork returned the session itself, expected a copy")
            return copy

        return await self._take(fork)

    def close(self, *sessions: EnvironmentSession | Failure) -> None:
        """Close sessions in the background; only `close_all` waits for it."""
        for session in sessions:
            if not isinstance(session, Failure):
                self._open_sessions.pop(id(session), None)
                self._ending.append(asyncio.create_task(self.ask(partial(_close, session))))

    async def close_all(self) -> None:
        """Close all sessions still held (after a failure, also those half opened or half forked), and wait for it.

        An environment that does not close within its deadline is not waited for.
        """
        self._is_over = True
        self.close(*self._open_sessions.values())
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def ask(self, ask: Callable[[], Awaitable[Value]]) -> Value | Failure:
        """Await a method of the environment, for at most the environment's deadline; a `Failure` if it fails or is late.

        Raises:
            RamifyError: An error of the run.
        """
        task, seconds = issue(ask), self.environment.seconds
        if seconds is not None:
            try:
                return await first_good((task,), seconds)
            except asyncio.CancelledError:
                # Leave it one more deadline, from now, to free what it had begun.
                self._ending.append(asyncio.create_task(asyncio.wait((task.task,), timeout=seconds)))
                raise
        try:
            await asyncio.wait((task.task,))
        except asyncio.CancelledError:
            # It frees what it had begun; its parts have deadlines of their own.
            abandon(task.task)
            self._ending.append(task.task)
            raise
        return task.task.result()

    async def _take(self, give: Callable[[], Awaitable[EnvironmentSession]]) -> EnvironmentSession | Failure:
        """Hold the session that `give` returns, to close it later; one that comes too late is closed at once."""
        is_late = False

        async def take() -> EnvironmentSession:
            session = await give()
            if is_late or self._is_over:
                await session.close()
            else:
                self._open_sessions[id(session)] = session
            return session

        try:
            answer = await self.ask(take)
        except BaseException:
            is_late = True
            raise
        is_late = isinstance(answer, Failure)
        return answer


# A function, so that the attribute is looked up within the guarded task: a "session" may lack even this method.
async def _close(session: EnvironmentSession) -> None:
    await session.close()


@dataclass(frozen=True, slots=True)
class World:
    """Everything that one tree needs of its environment besides tool calls; each failure is emitted as an event.

    `failures` holds the reasons why trajectories failed, in order.
    """

    parts: AgentParts
    key: TreeKey
    keeper: SessionKeeper
    failures: list[str] = field(default_factory=list)

    async def step(self, session: EnvironmentSession, node: Node, turn: ParsedTurn) -> Observation | Failure:
        """Return the reply to a turn without calls; its texts are cut to the limit, and secrets are redacted."""

        async def step() -> Observation:
            reply, most = await checked_reply(session, turn), self.parts.limits.max_result_chars
            texts = (cut_to(most, message.text) for message in reply.messages)
            return replace(reply, messages=tuple(Message.of("user", text) for text in texts))

        with self.parts.waits.on("environment"):
            return self.report_failure("step", node.id, await self.keeper.ask(step))

    async def score(self, session: EnvironmentSession, trajectory: Trajectory) -> float | Failure:
        """Return the reward of the whole trajectory, on top of those of its turns."""

        answer = await self.keeper.ask(partial(checked_score, session, trajectory))
        return self.report_failure("score", trajectory.leaf.id, answer)

    async def replay(self, path: Sequence[Node]) -> EnvironmentSession | Failure:
        """Return a new session in which the turns of a path are replayed; each reply must equal the recorded one."""
        session = await self.keeper.open()
        if isinstance(session, Failure):
            return session
        for index, node in enumerate(path):
            if node.source is not Source.POLICY or node.turn is None:
                continue
            after = path[index + 1] if index + 1 < len(path) else None
            if after is None or after.source is not Source.TOOL or not (after.results or after.messages):
                continue
            failure = await self._replay_turn(session, node, after)
            if failure is not None:
                self.keeper.close(session)
                return failure
        return session

    def report_failure(self, method: str, node: str, answer: Value | Failure) -> Value | Failure:
        """Emit an event if the answer is a failure; returns the answer."""
        if isinstance(answer, Failure):
            reason, tree = redact(answer.reason)[:500], (self.key.step, self.key.slot)
            now = asyncio.get_running_loop().time()
            self.parts.events.emit(Event(f"environment/{method}", tree, node, 0.0, {"reason": reason}, now))
            # A branch that fails is dropped, and another trajectory takes its place.
            if method != "branch":
                self.failures.append(answer.reason)
        return answer

    async def _replay_turn(self, session: EnvironmentSession, node: Node, recorded: Node) -> Failure | None:
        if isinstance(node.turn, Calls):
            results = await run_calls(self.parts, self.key, node.id, node.calls, session)
            same = results == recorded.results
        else:
            assert node.turn is not None
            reply = await self.step(session, node, node.turn)
            if isinstance(reply, Failure):
                return reply
            same = (reply.messages, reply.reward, reply.ends) == (recorded.messages, node.reward, False)
        return (
            None
            if same
            else Failure(ValueError(f"node {node.id}: the replayed reply differs from the recorded one"))
        )


async def checked_reply(session: EnvironmentSession, turn: ParsedTurn) -> Observation:
    """Return the reply to a turn without calls, with secrets redacted.

    Raises:
        TypeError: It is none that can be rendered, recorded and read back.
    """
    reply: object = await session.step(turn)
    if not isinstance(reply, Observation):
        raise TypeError(f"step returned {type(reply).__name__}, expected an Observation")
    if not is_paid(reply.reward) or not isinstance(reply.ends, bool):
        raise TypeError("the reward of an observation is not a finite number, or `ends` is not a bool")
    if not all(isinstance(message, Message) and message.role == "user" for message in reply.messages):
        raise TypeError("a message of an observation has another role than user")
    messages = tuple(Message.of("user", redact(message.text)) for message in reply.messages)
    return replace(reply, messages=messages, reward=float(reply.reward))


async def checked_score(session: EnvironmentSession, trajectory: Trajectory) -> float:
    """Return what an environment pays for a whole trajectory.

    Raises:
        TypeError: It is not a finite number.
    """
    paid = await session.score(trajectory)
    if not is_paid(paid):
        raise TypeError(f"score returned {paid!r:.60}, expected a finite number")
    return float(paid)


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply to a turn: the reason why the trajectory ends (`stop`), or tokens that are added to the context."""

    stop: StopReason | None = None
    results: tuple[ToolResult, ...] = ()
    messages: tuple[Message, ...] = ()
    reward: float = 0.0
    token_ids: tuple[int, ...] = ()
    rewritten: RewrittenContext | None = None


async def reply_to_turn(world: World, state: TrajectoryState, node: Node) -> Reply:
    """Return what follows the turn that ends with `node`: the results of its calls, the environment's reply, or the end."""
    assert not isinstance(state.session, Failure | None)
    if not isinstance(node.turn, Calls):
        return await _reply_without_calls(world, state, state.session, node)
    if state.calls + len(node.calls) > world.parts.limits.max_calls:
        return Reply(StopReason.CALLS)
    results = await run_calls(world.parts, world.key, node.id, node.calls, state.session)
    paid = sum(result.reward for result in results)
    if any(result.ends for result in results):
        return Reply(StopReason.ENDED, results, reward=paid)
    with content_errors("the results cannot be rendered"):
        names = [call.name for call in node.calls]
        ids = world.parts.renderer.render_results(results, state.tools, names)
    return Reply(None, results, reward=paid, token_ids=ids)


async def _reply_without_calls(
    world: World, state: TrajectoryState, session: EnvironmentSession, node: Node
) -> Reply:
    """Return what follows a turn without calls: the environment's reply, or the end."""
    assert node.turn is not None
    usual_stop = StopReason.ANSWERED if isinstance(node.turn, Final) else StopReason.MALFORMED
    most = world.parts.environment.max_observations
    if not most:
        return Reply(usual_stop)
    if state.steps >= most:
        return Reply(StopReason.CALLS)
    observation = await world.step(session, node, node.turn)
    if isinstance(observation, Failure):
        return Reply(StopReason.FAILED)
    if observation.ends or not observation.messages:
        # An answer stays an answer even if the environment ends the episode with it.
        is_malformed = usual_stop is StopReason.MALFORMED
        stop = StopReason.ENDED if observation.ends and is_malformed else usual_stop
        return Reply(stop, messages=observation.messages, reward=observation.reward)
    with content_errors("the environment's reply cannot be rendered"):
        turn = state.shared_text + node.text
        ids = world.parts.renderer.render_user_turn(turn, observation.messages, state.tools)
    return Reply(None, messages=observation.messages, reward=observation.reward, token_ids=ids)
