"""Resampling of other trainers' conversations at a chat endpoint: POST {url}/chat/completions, turn by turn, to the end."""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.chat.conversation import AssistantCall, AssistantTurn, Line, split_thought
from ramify.core.draws import stream
from ramify.core.errors import ContentError
from ramify.core.messages import Calls, Problem
from ramify.core.protocols import Json, RewardFn
from ramify.core.records import Finish, Reward
from ramify.core.tree import Node, Source, StopReason, Trajectory
from ramify.engines.openai import bearer
from ramify.engines.openai_chat import chat_message, read_chat_reply
from ramify.net.client import HttpClient
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.servers import Servers
from ramify.obs.console import Phase
from ramify.rollout.grow import first_failure
from ramify.rollout.plan import content_errors
from ramify.runs.keyed_lines import KeyedLines, key_of
from ramify.study.conversation_nodes import reply_node, turn_node
from ramify.study.conversations import ForeignRun
from ramify.study.effects import Side
from ramify.study.forks import State
from ramify.study.replayed_world import (
    WORLD_FAILED,
    UnknownOutcomeError,
    World,
    WorldSession,
    paid,
    paid_at_end,
    replay,
)

_MOST_TURNS = 50
"""Turns of a trajectory, beyond which it has no reward."""
AT_ONCE = 64
"""Trajectories that are sampled at a time: more than the client has requests in flight, since some wait for a world."""
_WRONG_ADDRESS = "Correct --url, which should end with the version, such as /v1, or --model"
_ADVICE = {
    **dict.fromkeys(FailureKind, _WRONG_ADDRESS),
    FailureKind.CONNECTION: "Start the model, or correct --url",
    FailureKind.TIMEOUT: "Lower --max-tokens, or use a faster server",
    FailureKind.TOO_MANY: "The address is right: wait until the service takes requests again, and repeat the command",
    FailureKind.SERVER: "The address is right: look at the server's own messages, and repeat the command",
    FailureKind.TOO_LARGE: "Lower --max-tokens",
}
_REQUEST_FAILED, _REWARD_FAILED = "a request that failed", "the reward failed"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model at a chat endpoint.

    Attributes:
        client: HTTP client for the service.
        servers: Its address.
        model: Name of the model.
        key: Key of the service; None: it needs none.
        max_tokens: Most tokens of a turn.
        temperature: Of the sampling distribution.
    """

    client: HttpClient
    servers: Servers
    model: str
    key: str | None
    max_tokens: int
    temperature: float

    async def write_turn(
        self, lines: Sequence[Line], tools: Sequence[Json], seed: int
    ) -> tuple[AssistantTurn, Finish]:
        """Return the next turn.

        Raises:
            UnknownOutcomeError: The request failed.
            ServiceDownError: The service is down, or refuses the key.
        """
        body: dict[str, Json] = {
            "model": self.model,
            "messages": [chat_message(line, None) for line in lines],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": seed,
            **({"tools": list(tools)} if tools else {}),
        }
        try:
            answer = await self.client.post_json_to(
                self.servers, "/chat/completions", body, headers=bearer(self.key)
            )
            reply = read_chat_reply(answer, (), sent=False)
        except RequestFailedError as error:
            raise UnknownOutcomeError(f"{_REQUEST_FAILED}: {error}"[:200]) from None
        return reply.turn, reply.finish


@dataclass(frozen=True, slots=True)
class EndpointForks:
    """Trajectories that go on from states of conversations, recorded as lines of a file.

    Attributes:
        run: The conversations.
        world: Where calls get their results.
        endpoint: The model.
        reward: Scores the trajectories.
        path: File that gets a line for each, "samples" in its name; one with "ends" in that place gets the recorded ends.
    """

    run: ForeignRun
    world: World
    endpoint: Endpoint
    reward: RewardFn
    path: Path

    async def grow(self, states: Sequence[State], samples: int, phase: Phase) -> None:
        """Sample what the file lacks; what a failed request ended is sampled again.

        Raises:
            ServiceDownError: The service is down, or refuses the key.
        """
        await self._fill(self._lines(), [(state, i) for state in states for i in range(samples)], phase)

    async def score_ends(self, ends: Sequence[State], phase: Phase) -> None:
        """Score recorded ends, each once."""
        await self._fill(self._end_lines(), [(end, 0) for end in ends], phase)

    async def _fill(self, lines: KeyedLines, wanted: Sequence[tuple[State, int]], phase: Phase) -> None:
        done = {key for key, record in lines.each() if not _is_failed(record["reason"])}
        lines.keep(done)
        missing = [(state, sample) for state, sample in wanted if (_name(state), sample) not in done]
        phase.advance(len(wanted) - len(missing))
        # A few tasks share them: a task for each would hold as many sessions and conversations in memory.
        left = iter(missing)

        async def work() -> None:
            for state, sample in left:
                reward, reason = await self._sample(state, sample)
                lines.append({"state": _name(state), "sample": sample, "reward": reward, "reason": reason})
                phase.advance(1)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(missing))):
                    group.create_task(work())
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from failures

    def sides(self, states: Sequence[State]) -> dict[State, Side]:
        """Return what was sampled from each state."""
        rewards: dict[str, list[float]] = {}
        unknown: Counter[str] = Counter()
        for (name, _), record in sorted(self._lines().read().items()):
            if record["reward"] is None:
                unknown[name] += 1
            else:
                rewards.setdefault(name, []).append(record["reward"])
        names = {state: _name(state) for state in states}
        return {
            state: Side(state[1], tuple(rewards.get(name, ())), unknown[name])
            for state, name in names.items()
        }

    def end_rewards(self, ends: Sequence[State]) -> dict[State, Reward]:
        """Return the reward of each recorded end; one that is not known does not count."""
        names = {_name(end): end for end in ends}
        values = {key[0]: record["reward"] for key, record in self._end_lines().each() if key[0] in names}
        return {
            names[name]: Reward(value or 0.0, {}, counts=value is not None) for name, value in values.items()
        }

    @property
    def has_samples(self) -> bool:
        """True if a trajectory was sampled that no failed request ended."""
        return any(not _is_failed(record["reason"]) for _, record in self._lines().each())

    @property
    def num_failed(self) -> int:
        """Number of trajectories that failed requests ended."""
        return sum(_is_failed(record["reason"]) for _, record in self._lines().each())

    @property
    def failure(self) -> str:
        """The first reason, if failed requests ended all trajectories; "" if one ended otherwise, or there is none."""
        reasons = [record["reason"] for _, record in self._lines().each()]
        return reasons[0] if reasons and all(map(_is_failed, reasons)) else ""

    @property
    def end_failure(self) -> str:
        """The first reason, if the reward or the environment failed at all recorded ends; "" if it did not, or there is none."""
        reasons = [record["reason"] for _, record in self._end_lines().each()]
        is_failure = all(each.startswith((_REWARD_FAILED, WORLD_FAILED)) for each in reasons)
        return reasons[0] if reasons and is_failure else ""

    def reasons(self) -> dict[str, int]:
        """Return the number of trajectories without a reward, by reason."""
        records = (record for _, record in self._lines().each())
        return dict(Counter(record["reason"] for record in records if record["reward"] is None))

    def remove(self) -> None:
        """Remove what was sampled and scored."""
        for lines in (self._lines(), self._end_lines()):
            lines.path.unlink(missing_ok=True)

    def _lines(self) -> KeyedLines:
        return _keyed(self.path)

    def _end_lines(self) -> KeyedLines:
        return _keyed(self.path.with_name(self.path.name.replace("samples", "ends")))

    async def _sample(self, state: State, sample: int) -> tuple[float | None, str]:
        """Return the reward of one trajectory from a state, or of a recorded end; or None and why it has none."""
        row, node = state
        tree = self.run.trees[row].tree
        path = tree.path_to(tree.by_id[node])
        session: WorldSession | None = None
        try:
            session = await self.world.open(row)
            if path[-1].stop is not None:
                trajectory = await session.scored_end(Trajectory(tree.problem, tuple(path)))
            else:
                above = await replay(session, path)
                seed = stream("audit", row, node, sample) % 2**31
                trajectory = await self._go_on(session, row, above, seed)
                trajectory = paid_at_end(trajectory, await session.ended(trajectory))
            return await self._score(trajectory)
        except UnknownOutcomeError as error:
            return None, f"{error}"
        finally:
            if session is not None:
                await session.close()

    async def _score(self, trajectory: Trajectory) -> tuple[float | None, str]:
        try:
            with content_errors("the reward"):
                (reward,) = await self.reward.score([trajectory])
        except ContentError as error:
            return None, f"{_REWARD_FAILED}: {error}"[:200]
        if not math.isfinite(reward.value):
            return None, f"the reward is {reward.value}"
        return (reward.value, "") if reward.counts else (None, "the reward has no verdict")

    async def _go_on(self, session: WorldSession, row: int, above: Sequence[Node], seed: int) -> Trajectory:
        tree, tools = self.run.trees[row].tree, self.world.tools(row)
        nodes = list(above)
        for _ in range(_MOST_TURNS):
            turn, finish = await self.endpoint.write_turn(
                conversation_of(tree.problem, nodes), tools, (seed + len(nodes)) % 2**31
            )
            path = (*nodes[-1].path, 0)
            if not turn.calls:
                end = turn_node(turn, path, is_last=True)
                stop = StopReason.TOKENS if finish is Finish.LENGTH else StopReason.ANSWERED
                reply = None if finish is Finish.LENGTH else await session.step(end)
                paid_for = replace(end, reward=reply.reward if reply else 0.0)
                if reply is None or reply.ends or not reply.messages:
                    return Trajectory(tree.problem, (*nodes, replace(paid_for, stop=stop)))
                nodes += [replace(paid_for, stop=None), reply_node((*path, 0), (), reply.messages)]
                continue
            node = turn_node(turn, path, is_last=False)
            results = [await session.call(call) for call in node.calls]
            if any(result.ends for result in results):
                ended = replace(node, results=tuple(results), stop=StopReason.ENDED)
                return Trajectory(tree.problem, (*nodes, paid(ended, results)))
            nodes += [paid(node, results), reply_node((*path, 0), results)]
        raise UnknownOutcomeError(f"the trajectory did not end within {_MOST_TURNS} turns")


def conversation_of(problem: Problem, nodes: Sequence[Node]) -> list[Line]:
    """Return a path as lines for an endpoint."""
    lines: list[Line] = [*problem.messages]
    for node in nodes[1:]:
        if node.source is Source.POLICY:
            calls = node.turn.calls if isinstance(node.turn, Calls) else ()
            written = split_thought(node.text)
            lines.append(
                replace(
                    written,
                    calls=tuple(AssistantCall(c.id, c.name, json.dumps(dict(c.arguments))) for c in calls),
                )
            )
        else:
            lines += [*node.results, *node.messages]
    return lines


def _is_failed(reason: str) -> bool:
    return reason.startswith(_REQUEST_FAILED)


def advice_on(reason: str) -> str:
    """Return what to do about a request that failed for this reason."""
    kind = FailureKind(reason.removeprefix(f"{_REQUEST_FAILED}: ").partition(":")[0])
    if kind is FailureKind.CLIENT and not re.search(r"HTTP (404|405|410) ", reason):
        # The service is there, and says what it does not take.
        return "Change what the service refuses, such as --model, --max-tokens or --temperature"
    return _ADVICE[kind]


def _keyed(path: Path) -> KeyedLines:
    return KeyedLines(path, lambda record: key_of(record["state"], record["sample"]))


def _name(state: State) -> str:
    return f"{state[0]}/{state[1]}"
