"""Resampling of other trainers' conversations at a chat endpoint, to the end; every trajectory is a line of a file."""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.core.draws import stream
from ramify.core.errors import ContentError
from ramify.core.protocols import RewardFn
from ramify.core.records import Finish, Reward
from ramify.core.tree import Node, Source, StopReason, Trajectory, make_tree
from ramify.obs.console import Phase
from ramify.obs.trace import TracedTree, node_record, write_trees
from ramify.obs.trace_fields import read_node
from ramify.rollout.grow import first_failure
from ramify.rollout.plan import content_errors
from ramify.runs.keyed_lines import KeyedLines, key_of
from ramify.study.conversation_nodes import reply_node, turn_node
from ramify.study.conversations import ForeignRun
from ramify.study.effects import Side
from ramify.study.endpoint import REQUEST_FAILED, Endpoint, conversation_of
from ramify.study.forks import State
from ramify.study.replayed_world import (
    WORLD_FAILED,
    UnknownOutcomeError,
    World,
    WorldSession,
    called,
    paid,
    paid_at_end,
    replay,
)

_MOST_TURNS = 50
"""Turns of a trajectory, beyond which it has no reward."""
AT_ONCE = 64
"""Trajectories that are sampled at a time: more than the client has requests in flight, since some wait for a world."""
_REWARD_FAILED = "the reward failed"


@dataclass(frozen=True, slots=True)
class _Sample:
    """A trajectory that went on from a state.

    Attributes:
        reward: Its reward; None: it is not known.
        reason: The reason why it is not known; "" if it is.
        nodes: What was written and replied below the state; none of a recorded end.
    """

    reward: Reward | None
    reason: str
    nodes: Sequence[Node] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of its line."""
        return {
            "reward": None if self.reward is None else self.reward.value,
            "parts": {} if self.reward is None else dict(self.reward.parts),
            "reason": self.reason,
            "nodes": [node_record(node) for node in self.nodes],
        }


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
        lines = self._end_lines()
        await self._fill(lines, [(end, 0) for end in ends], phase)
        lines.sort(sorted(lines.keys()))

    async def _fill(self, lines: KeyedLines, wanted: Sequence[tuple[State, int]], phase: Phase) -> None:
        # Lines of earlier versions have no nodes.
        done = {key for key, record in lines.each() if "nodes" in record and not _is_failed(record["reason"])}
        lines.keep(done)
        missing = [(state, sample) for state, sample in wanted if (_name(state), sample) not in done]
        phase.advance(len(wanted) - len(missing))
        # A few tasks share them: a task for each would hold as many sessions and conversations in memory.
        left = iter(missing)

        async def work() -> None:
            for state, sample in left:
                grown = await self._sample(state, sample)
                lines.append({"state": _name(state), "sample": sample, **grown.fields})
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
        for (name, _), reward in sorted((key, record["reward"]) for key, record in self._lines().each()):
            if reward is None:
                unknown[name] += 1
            else:
                rewards.setdefault(name, []).append(reward)
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

    def write_trees(self, states: Sequence[State], path: Path) -> None:
        """Write a tree for each state, in their order, with the trajectories that go on from it.

        Left out are trajectories that failed before a turn.
        """
        names = {_name(state): state for state in states}
        lines = self._lines()
        numbers = {name: number for number, name in enumerate(names)}
        # In order, so that one state's trajectories are in memory at a time. Those of other states stay for later commands.
        lines.sort(sorted(lines.keys(), key=lambda key: (numbers.get(key[0], len(numbers)), key)))
        groups = itertools.groupby(lines.each(), key=lambda line: line[0][0])
        grown = (
            self._grown(number, names[name], [record for _, record in group])
            for number, (name, group) in enumerate(groups)
            if name in names
        )
        write_trees(path, (traced for traced in grown if traced is not None))

    def _grown(self, number: int, state: State, records: Sequence[Mapping[str, Any]]) -> TracedTree | None:
        row, start = state
        tree = self.run.trees[row].tree
        nodes, rewards = [*tree.path_to(tree.by_id[start])], []
        for record in records:
            if record["nodes"]:
                nodes += map(read_node, record["nodes"])
                value = record["reward"]
                rewards.append(Reward(value or 0.0, record["parts"], counts=value is not None))
        key = replace(tree.key, attempt=number + 1)
        return (
            TracedTree(make_tree(tree.problem, key, nodes, start=start), tuple(rewards)) if rewards else None
        )

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

    async def _sample(self, state: State, sample: int) -> _Sample:
        """Return one trajectory from a state, or a recorded end."""
        row, node = state
        tree = self.run.trees[row].tree
        path = tree.path_to(tree.by_id[node])
        nodes: list[Node] = []
        session: WorldSession | None = None
        try:
            session = await self.world.open(row)
            if path[-1].stop is not None:
                trajectory = await session.scored_end(Trajectory(tree.problem, path))
            else:
                nodes += await replay(session, path)
                await self._go_on(session, row, nodes, sample)
                trajectory = Trajectory(tree.problem, tuple(nodes))
                trajectory = paid_at_end(trajectory, await session.ended(trajectory))
            reward, reason = await self._score(trajectory)
            return _Sample(reward, reason, trajectory.nodes[len(path) :])
        except UnknownOutcomeError as error:
            return _Sample(None, f"{error}", _failed_at_last_turn(nodes[len(path) :]))
        finally:
            if session is not None:
                await session.close()

    async def _score(self, trajectory: Trajectory) -> tuple[Reward | None, str]:
        try:
            with content_errors("the reward"):
                (reward,) = await self.reward.score([trajectory])
        except ContentError as error:
            return None, f"{_REWARD_FAILED}: {error}"[:200]
        if not math.isfinite(reward.value):
            return None, f"the reward is {reward.value}"
        return (reward, "") if reward.counts else (None, "the reward has no verdict")

    async def _go_on(self, session: WorldSession, row: int, nodes: list[Node], sample: int) -> None:
        """Add turns and the replies to them to a path, up to the end."""
        tree, tools = self.run.trees[row].tree, self.world.tools(row)
        seed = stream("audit", row, nodes[-1].id, sample) % 2**31
        # A state's trajectories are siblings.
        path = (*nodes[-1].path, sample)
        for _ in range(_MOST_TURNS):
            turn, finish = await self.endpoint.write_turn(
                conversation_of(tree.problem, nodes), tools, (seed + len(nodes)) % 2**31
            )
            nodes.append(turn_node(turn, path, is_last=not turn.calls))
            if await self._end_turn(session, nodes, finish):
                return
            path = (*nodes[-1].path, 0)
        raise UnknownOutcomeError(f"the trajectory did not end within {_MOST_TURNS} turns")

    async def _end_turn(self, session: WorldSession, nodes: list[Node], finish: Finish) -> bool:
        """Add the reply to the last turn; returns True if it ended the trajectory."""
        turn, below = nodes[-1], (*nodes[-1].path, 0)
        if turn.calls:
            results = await called(session, turn.calls)
            nodes[-1] = paid(turn, results)
            if any(result.ends for result in results):
                nodes[-1] = replace(nodes[-1], results=results, stop=StopReason.ENDED)
                return True
            nodes.append(reply_node(below, results))
            return False
        if finish is Finish.LENGTH:
            nodes[-1] = replace(turn, stop=StopReason.TOKENS)
            return True
        reply = await session.step(turn)
        nodes[-1] = replace(turn, reward=reply.reward if reply else 0.0)
        if reply is None or reply.ends or not reply.messages:
            return True
        nodes[-1] = replace(nodes[-1], stop=None)
        nodes.append(reply_node(below, (), reply.messages))
        return False


def _failed_at_last_turn(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return nodes up to the last turn, where the trajectory failed."""
    turns = [index for index, node in enumerate(nodes) if node.source is Source.POLICY]
    if not turns:
        return ()
    return (*nodes[: turns[-1]], replace(nodes[turns[-1]], stop=StopReason.FAILED))


def _is_failed(reason: str) -> bool:
    return reason.startswith(REQUEST_FAILED)


def _keyed(path: Path) -> KeyedLines:
    return KeyedLines(path, lambda record: key_of(record["state"], record["sample"]))


def _name(state: State) -> str:
    return f"{state[0]}/{state[1]}"
