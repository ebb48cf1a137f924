"""A scripted agent over a real renderer: what the rollout tests and the trainer tests play.

Tools, sessions and the engine take a time that is drawn from `latency_seed` and from what they are asked, so that
two seeds give two orders of events; what they answer depends on what they are asked alone.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.draws import stream, uniform
from ramify.core.messages import Message, Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.records import ContinueFrom, FreshContext, Reward
from ramify.core.tree import Cut
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.engines.virtual_clock import run_virtual
from ramify.obs.trace import TracedTree, read_trees, write_trees
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.grow import grow_requests, grow_trees
from ramify.rollout.settings import AgentParts
from ramify.rollout.tool_set import ToolSet

FLAT = FlatBrancher(probe_tokens=3)
ALWAYS = ThresholdBrancher(m=2, min_entropy_delta=-100.0, children=1, probe_tokens=3)
"""Two roots, and a branch at every result while there is budget."""
CALL_SECONDS = 100
"""No call takes longer."""
SEARCH = "<search> Paris </search>"
ANSWER = "<answer> \\boxed{ 42 } </answer>"


def part(*name):
    """A number in [0, 1) that belongs to a name."""
    return stream(*name) / 2**63


class EventList:
    """An event sink."""

    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(event)


class SlowTool:
    """A tool whose answers depend on the call alone and whose latencies are drawn from `latency_seed`.

    Its state is the number of calls on the trajectory; a fork must copy it.
    """

    def __init__(self, name, argument, latency_seed=0, hedge_seconds=None):
        self.spec = ToolSpec(
            name,
            "test tool",
            {"type": "object", "required": [argument]},
            forks=True,
            timeout_seconds=1000.0,
            hedge_seconds=hedge_seconds,
        )
        self.argument = argument
        self.latency_seed = latency_seed
        self.issued = Counter()
        self.open_sessions = 0

    async def open(self, problem):
        await asyncio.sleep(0.1 * part(self.latency_seed, problem.id, "open"))
        return self.session(0)

    def session(self, calls):
        self.open_sessions += 1
        return SlowSession(self, calls)


@dataclass
class SlowSession:
    tool: SlowTool
    calls: int
    closed: bool = False

    async def call(self, call):
        self.tool.issued[call.id] += 1
        attempt = self.tool.issued[call.id]
        await asyncio.sleep(CALL_SECONDS * part(self.tool.latency_seed, call.id, attempt))
        self.calls += 1
        text = f"{call.arguments[self.tool.argument]} call {self.calls} answer 42"
        return ToolResult(call.id, ToolStatus.OK, text, ambiguous=part(call.id, "ambiguous") < 0.5)

    async def fork(self):
        await asyncio.sleep(0.1 * part(self.tool.latency_seed, self.calls, "fork"))
        return self.tool.session(self.calls)

    async def close(self):
        if not self.closed:
            self.closed = True
            self.tool.open_sessions -= 1


class WrappedEngine:
    """Another engine, asked through `generate`: the base of engines that misbehave in one way."""

    def __init__(self, inner):
        self.inner = inner
        self.info = inner.info

    async def generate(self, request):
        return await self.inner.generate(request)


class SlowEngine(WrappedEngine):
    """Takes longer than the script says."""

    latency_seed = 0

    async def generate(self, request):
        await asyncio.sleep(10 * part(self.latency_seed, request.priority, request.stop_context))
        return await self.inner.generate(request)


class RecordingEngine(WrappedEngine):
    """Keeps the requests."""

    def __init__(self, inner):
        super().__init__(inner)
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        return await self.inner.generate(request)


@dataclass
class FoldsMemory:
    """A context rewriter: after result number `after`, the prompt and what was found instead of all that was said.

    Each finding ends as a result does, so that `script` still knows how many there were.
    """

    after: int
    name = "folds"
    budget = 1

    async def rewrite(self, trajectory, tools):
        results = [result.text for _, result in trajectory.exchanges]
        if trajectory.leaf.stop is not None or len(results) != self.after:
            return None
        summary = "".join(f"{text}\n</result>" for text in results)
        (question,) = trajectory.problem.messages
        return FreshContext((Message.of("user", f"{question.text} {summary}"),))


@dataclass
class Backtracks:
    """A context rewriter: after result number `after`, back to the middle of the turn that asked for it, with another word."""

    after: int
    text: str = " hm"
    tokens: int | None = None
    node: str | None = None
    budget: int = 1
    name = "backtracks"

    async def rewrite(self, trajectory, tools):
        if trajectory.leaf.stop is not None or len(trajectory.exchanges) != self.after:
            return None
        question = trajectory.policy_nodes[-1]
        tokens = len(question.token_ids) // 2 if self.tokens is None else self.tokens
        return ContinueFrom(Cut(question.id if self.node is None else self.node, tokens), self.text)


def script(context, seed):
    """Three turns at most; which tool, which entropy and when to answer come from the seed and the context."""
    done = context.count("\n</result>")
    first, second, third = (uniform(seed, index) for index in range(3))
    if done < 3 and first < 0.75:
        name = "search" if second < 0.5 else "python"
        text = f"<think> find {done} </think><{name}> print {int(third * 80)} </{name}>"
        return ScriptedTurn(text, (0.1 + second, 0.2 + third), seconds_per_token=0.01 + first)
    text = "<think> done </think><answer> \\boxed{ 42 } </answer>"
    return ScriptedTurn(text, (0.1 + second, 0.2 + third), seconds_per_token=0.5 * second)


def plays(*turns, **settings):
    """A script: the next turn by the number of results in the context, the last one from then on."""

    def play(context, seed):
        return ScriptedTurn(turns[min(context.count("\n</result>"), len(turns) - 1)], **settings)

    return play


def problem(identifier="p0", text="what is 12 plus 30 ?"):
    return Problem(identifier, (Message.of("user", text),), ("42",))


tokenizer_of = cache(ChatTokenizer)


def agent(
    folder,
    brancher,
    play=script,
    *,
    n=8,
    max_calls=3,
    max_tokens=400,
    exact_entropy=True,
    limits=None,
    **parts,
):
    """An agent with two tools; `limits` are further ones, `parts` those that are not the default."""
    tokenizer = tokenizer_of(folder)
    tools = parts.pop("tools", None) or {
        "search": SlowTool("search", "query"),
        "python": SlowTool("python", "code"),
    }
    renderer = parts.pop("renderer", None) or TagRenderer(tokenizer)
    limits = RolloutLimits(n=n, max_tokens=max_tokens, max_calls=max_calls, **(limits or {}))
    engine = SlowEngine(ScriptedEngine(tokenizer, play, exact_entropy=exact_entropy))
    return AgentParts(engine, renderer, ToolSet(tools), brancher, limits, EventList(), 7, **parts)


def agent_in(environment, folder, brancher, play=script, **options):
    """An agent that acts in `environment`, on the real clock; `options` as those of `agent`."""
    parts = agent(folder, brancher, play, **options)
    return replace(parts, environment=environment, engine=parts.engine.inner)


def call_tool(tool, arguments, malformed=None):
    """The result of one call, in a session of its own."""

    async def main():
        session = await tool.open(problem())
        return await session.call(ToolCall("c", tool.spec.name, arguments, malformed))

    return asyncio.run(main())


def run_clean(work, patience=0.0):
    """The result of a coroutine, which must leave no task behind after `patience` seconds."""

    async def main():
        result = await work
        await asyncio.sleep(patience)
        assert len(asyncio.all_tasks()) == 1
        return result

    return asyncio.run(main())


def with_latencies(parts, seed):
    """The same agent under other latencies."""
    for timed in (parts.engine, *parts.environment.members.values()):
        timed.latency_seed = seed
    return parts


def with_engine(parts, wrapper, *arguments):
    """The same agent with its engine wrapped."""
    return replace(parts, engine=wrapper(parts.engine, *arguments))


def grow(parts, problems=None, step=0, left_tasks=0):
    """Trees and the virtual seconds that they took.

    Nothing may be left behind but `left_tasks` tasks that do not agree to be cancelled (None: any number).
    """

    async def main():
        trees = await grow_trees(parts, problems or [problem()], step)
        seconds = asyncio.get_running_loop().time()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert left_tasks is None or len(asyncio.all_tasks()) == 1 + left_tasks
        return trees, seconds

    for tool in parts.environment.members.values():
        tool.issued.clear()
    grown, _ = run_virtual(main())
    assert parts.live.value == 0
    assert [tool.open_sessions for tool in parts.environment.members.values()] == [0] * len(
        parts.environment.members
    )
    assert parts.waits.describe(0.0) == ""
    return grown


def grow_one(parts, **options):
    """The tree of one problem."""
    ((tree,), _) = grow(parts, **options)
    return tree


def grow_planned(parts, requests):
    """The trees of requests, in their order."""

    async def whole(tree, _seconds):
        return tree

    trees, _ = run_virtual(grow_requests(parts, requests, whole))
    return trees


def assert_traced(tree, folder, rewards=None):
    """A trace gives the tree back."""
    traced = TracedTree(tree, tuple(rewards or [Reward(0.0, {})] * len(tree.trajectories)))
    write_trees(folder / "0.jsonl", [traced])
    assert read_trees(folder / "0.jsonl") == (traced,)
