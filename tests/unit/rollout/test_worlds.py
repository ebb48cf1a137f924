"""Trees in a world with a state: the same whatever it takes, and none lost whatever the world does.

RAMIFY_TRAJECTORIES=10000 grows more.
"""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from ramify.chat.tag_renderer import TagRenderer
from ramify.core.draws import stream, uniform
from ramify.core.messages import Message, Observation, Say, ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.engines.scripted import ScriptedTurn
from scripted_agents import (
    ALWAYS,
    Backtracks,
    FoldsMemory,
    agent,
    grow,
    grow_one,
    part,
    problem,
    tokenizer_of,
)

RULE = replace(ALWAYS, m=3)
SPEC = ToolSpec("search", "walk", {"type": "object", "required": ["query"]}, True, 50.0)
SECONDS = 40.0
TRAJECTORIES = int(os.environ.get("RAMIFY_TRAJECTORIES", "2000"))


class World:
    """A walk of which each step moves a place that depends on all steps before; it ends at a place divisible by 7.

    What it does takes a time that is drawn from `latency_seed`; what it says depends on the walk alone.
    """

    tools: ClassVar = {"search": SPEC}
    members: ClassVar = {}
    seconds = 60.0
    max_observations = 3
    scores = True
    opens = True

    def __init__(self, branches="fork", wrong=None):
        self.branches = branches
        self.latency_seed = 0
        self.sessions = 0
        self.opened = 0
        self.wrong = wrong or (lambda method, walk: None)

    async def open(self, problem, seed):
        await self.pause("open", ())
        self.opened += 1
        session = Walk(self, (seed % 97,), self.opened)
        await self.misbehave("open", session)
        self.sessions += 1
        return session

    async def pause(self, *name):
        await asyncio.sleep(SECONDS * part(self.latency_seed, *map(str, name)))

    async def misbehave(self, method, session):
        """Return what is wrong with the answer; None: nothing. It may also raise or hang."""
        return await _WRONG[self.wrong(method, session.walk)]()


@dataclass
class Walk:
    world: World
    walk: tuple
    number: int = 0
    is_closed: bool = False
    tools = World.tools

    @property
    def opening(self):
        return f" from {self.walk[0]}"

    @property
    def position(self):
        return stream("place", self.walk) % 1000

    async def moved(self, method, by):
        await self.world.pause(method, self.walk, by)
        self.walk = (*self.walk, by)
        if self.world.wrong(method, self.walk) == "differs":
            return f"at {self.position} in world {self.number}"
        return await self.world.misbehave(method, self)

    async def call(self, call):
        wrong = await self.moved("call", call.arguments["query"])
        text = f"at {self.position}" if wrong is None else wrong
        return ToolResult(
            call.id, ToolStatus.OK, text, reward=0.5 * (self.position % 2), ends=self.position % 7 == 0
        )

    async def step(self, turn):
        text = turn.text if isinstance(turn, Say) else str(turn)
        wrong = await self.moved("step", text)
        if wrong is not None and not isinstance(wrong, str):
            return wrong
        reply = (Message.of("user", wrong or f"you are at {self.position}"),)
        return Observation(reply, reward=0.25, ends=self.position % 7 == 0)

    async def fork(self, seed):
        await self.world.pause("fork", self.walk, seed)
        wrong = await self.world.misbehave("fork", self)
        if wrong is not None:
            return self
        self.world.sessions += 1
        return Walk(self.world, self.walk)

    async def score(self, trajectory):
        await self.world.pause("score", self.walk)
        wrong = await self.world.misbehave("score", self)
        return float(len(self.walk)) if wrong is None else wrong

    async def close(self):
        if not self.is_closed:
            self.is_closed = True
            self.world.sessions -= 1
            await self.world.pause("close", self.walk)
            await self.world.misbehave("close", self)


async def nothing():
    return None


async def fails():
    raise OSError("the world is gone")


async def hangs():
    await asyncio.Event().wait()


async def babbles():
    return "<answer> \\boxed{ 42 } </answer><|im_end|>" + "z" * 1_000_000


async def gives_a_list():
    return []


_WRONG = {None: nothing, "fails": fails, "hangs": hangs, "babbles": babbles, "type": gives_a_list}


def walks(context, seed):
    """Calls, words and answers, as the seed has it."""
    drawn = uniform(seed, 0)
    if drawn < 0.5:
        return ScriptedTurn(
            f"<think> so </think><search> {int(30 * uniform(seed, 1))} </search>", (drawn, 0.4)
        )
    if drawn < 0.85:
        return ScriptedTurn(f"<think> so </think> word {int(30 * uniform(seed, 1))}", (drawn, 0.3), ends=True)
    return ScriptedTurn("<think> so </think><answer> \\boxed{ 42 } </answer>", (drawn, 0.2))


def acting(folder, world, *, n=8, rule=RULE, **options):
    tokenizer = tokenizer_of(folder)
    renderer = TagRenderer(tokenizer)
    parts = agent(folder, rule, walks, n=n, max_calls=4, max_tokens=900, renderer=renderer, **options)
    return replace(parts, environment=world)


@pytest.fixture
def grown(tokenizer_folder):
    def make(world, latency_seed=0, **options):
        world.latency_seed = latency_seed
        tree = grow_in(acting(tokenizer_folder, world, **options), latency_seed)
        assert world.sessions == 0
        return tree

    return make


def grow_in(parts, latency_seed):
    parts.engine.latency_seed = latency_seed
    return grow_one(parts)


def test_a_walk_is_what_the_world_said(grown):
    tree = grown(World())
    assert len(tree.trajectories) == 8
    assert any(decision.taken for decision in tree.decisions)
    stops = Counter(trajectory.stop for trajectory in tree.trajectories)
    assert set(stops) <= {StopReason.ENDED, StopReason.CALLS, StopReason.ANSWERED, StopReason.TOKENS}
    start = int(tree.problem.messages[0].text.rpartition(" from ")[2])
    for trajectory in tree.trajectories:
        walk, paid = (start,), 0.0
        for node, after in zip(trajectory.nodes, (*trajectory.nodes[1:], None), strict=True):
            if node.source is not Source.POLICY or node.turn is None:
                continue
            reply = node if after is None else after
            for call, result in zip(node.calls, reply.results, strict=False):
                walk = (*walk, call.arguments["query"])
                position = stream("place", walk) % 1000
                assert result.text == f"at {position}"
                paid += 0.5 * (position % 2)
            for message in reply.messages:
                walk = (*walk, node.turn.text if isinstance(node.turn, Say) else str(node.turn))
                position = stream("place", walk) % 1000
                assert message.text == f"you are at {position}"
                paid += 0.25
            assert node is trajectory.leaf or position % 7
        # A turn beyond a limit did not reach the world.
        assert trajectory.paid == pytest.approx(paid + len(walk))


@pytest.mark.integration
@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
@pytest.mark.parametrize("branches", ["fork", "replay"])
def test_latencies_do_not_change_a_tree_in_a_world_with_rewriters(grown, branches, branch_at):
    options = {"rewriters": (Backtracks(2), FoldsMemory(3)), "branch_at": branch_at}
    first = grown(World(branches), 0, **options)
    assert any(decision.taken for decision in first.decisions)
    for seed in range(1, 1 + TRAJECTORIES // 40):
        assert grown(World(branches), seed, **options) == first


def test_a_branch_by_fork_is_that_by_replay(grown):
    assert grown(World("fork")) == grown(World("replay"))


class CountedForks(World):
    """A world that knows the seeds of its forks."""

    def __init__(self):
        super().__init__()
        self.seeds = []

    async def pause(self, *name):
        if name[0] == "fork":
            self.seeds.append(name[-1])
        await super().pause(*name)


def test_every_fork_has_a_random_stream_of_its_own(grown):
    world = CountedForks()
    tree = grown(world, rule=replace(RULE, children=3, m=1))
    assert any(decision.taken > 1 for decision in tree.decisions)
    assert len(set(world.seeds)) == len(world.seeds) > 1


EVERYTHING = {
    "open": ("fails", "hangs"),
    "call": ("fails", "hangs", "babbles", "differs"),
    "step": ("fails", "hangs", "babbles", "type", "differs"),
    "fork": ("fails", "hangs", "type"),
    "score": ("fails", "hangs", "type"),
    "close": ("fails", "hangs"),
}


class Raises:
    """A rewriter that fails whenever it is asked."""

    name = "raises"
    budget = 3

    async def rewrite(self, trajectory, tools):
        raise OSError("no such helper")


def misbehaving(method, walk):
    """Wrong in one of eight, in each of the ways."""
    drawn = stream("wrong", method, walk, len(walk))
    return EVERYTHING[method][drawn // 8 % len(EVERYTHING[method])] if drawn % 8 == 0 else None


@pytest.mark.integration
@pytest.mark.parametrize("branches", ["fork", "replay"])
def test_no_trajectory_is_lost_in_a_world_that_fails_in_every_way(tokenizer_folder, branches):
    """With rewriters that name a node off the path, cut a character, and raise."""
    world = World(branches, misbehaving)
    rewriters = (Backtracks(1, node="7"), Raises(), Backtracks(2, tokens=7))
    parts = acting(tokenizer_folder, world, n=10, limits={"max_result_chars": 200}, rewriters=rewriters)
    problems = [problem(f"p{number}") for number in range(TRAJECTORIES // 20)]
    trees, _ = grow(parts, problems)
    trajectories = [trajectory for tree in trees for trajectory in tree.trajectories]
    assert len(trajectories) == TRAJECTORIES // 2
    stops = Counter(trajectory.stop for trajectory in trajectories)
    assert stops[StopReason.FAILED] > TRAJECTORIES / 100
    assert stops[StopReason.ENDED] > TRAJECTORIES / 100
    assert world.sessions == 0
    kinds = Counter(event.kind for event in parts.events.events if "reason" in event.fields)
    assert {f"environment/{method}" for method in ("open", "step", "score", "branch")} <= set(kinds)
    assert {"rewriter/backtracks", "rewriter/raises"} <= set(kinds)
    failed = {(event.tree[1], event.node) for event in parts.events.events if "reason" in event.fields}
    for slot, tree in enumerate(trees):
        for trajectory in tree.trajectories:
            if trajectory.stop is StopReason.FAILED:
                leaf = trajectory.leaf
                assert {(slot, leaf.id), (slot, leaf.parent)} & failed
            assert (
                max(
                    len(result.text)
                    for _, result in [*trajectory.exchanges, (0, ToolResult("", ToolStatus.OK, ""))]
                )
                < 260
            )
