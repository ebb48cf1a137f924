"""A set of tools: limits of calls, tools of the user's own, and tools that join those in force during a trajectory.

No dialect announces one that joins in the context that has begun: the result that brought it speaks of it, or a fresh context
shows it.
"""

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest

from hermes_folders import QWEN3, write_hermes_tokenizer
from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.hermes import HermesRenderer
from ramify.core.messages import Observation, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.grow import grow_trees
from ramify.rollout.tool_set import ToolSet
from ramify.tools.functions import tool_from
from scripted_agents import (
    ALWAYS,
    ANSWER,
    FLAT,
    FoldsMemory,
    RecordingEngine,
    SlowTool,
    agent,
    assert_traced,
    grow_one,
    plays,
    problem,
    with_latencies,
)


def call(session, name, number):
    return session.call(ToolCall(f"{number}", name, {"query": "a", "code": "a"}))


def test_further_calls_are_answered_without_running_the_tool_and_a_fork_counts_what_was_made():
    async def main():
        tools = {"search": SlowTool("search", "query"), "python": SlowTool("python", "code")}
        session = await ToolSet(tools, {"python": 2}).open(problem(), 0)
        results = [await call(session, "python", 0)]
        fork = await session.fork(1)
        results += [await call(session, "python", n) for n in (1, 2)]
        results += [await call(fork, "python", n) for n in (3, 4)]
        results.append(await call(session, "search", 5))
        await session.close()
        await fork.close()
        return tools, results

    (tools, results), _ = run_virtual(main())
    ok, over = ToolStatus.OK, ToolStatus.OVER_LIMIT
    assert [result.status for result in results] == [ok, ok, over, ok, over, ok]
    assert "limit of 2 calls to python" in results[2].text
    assert sum(tools["python"].issued.values()) == 3


def test_a_call_that_is_made_again_counts_once():
    async def main():
        session = await ToolSet({"python": SlowTool("python", "code")}, {"python": 2}).open(problem(), 0)
        fork = await session.fork(1)
        results = [await call(session, "python", n) for n in (0, 0, 1, 1, 2, 1)]
        await session.close()
        await fork.close()
        return [result.status for result in results]

    ok, over = ToolStatus.OK, ToolStatus.OVER_LIMIT
    assert run_virtual(main())[0] == [ok, ok, ok, ok, over, ok]


def test_a_limit_and_a_repeated_query_are_answered_in_words_of_the_recipe():
    """As in ARPO's released evaluation: the limit comes first, and a query that was refused counts toward nothing."""

    def search(session, query, number):
        return session.call(ToolCall(f"{number}", "search", {"query": query}))

    async def main():
        tool_set = ToolSet(
            {"search": SlowTool("search", "query")}, {"search": 3}, {"search": "enough"}, {"search": "again"}
        )
        session = await tool_set.open(problem(), 0)
        results = [await search(session, query, n) for n, query in enumerate("aabA")]
        # A slow call that is made a second time is no repetition; a fork has searched what was searched before it.
        results.append(await search(session, "b", 2))
        fork = await session.fork(1)
        results += [await search(fork, query, n) for n, query in ((5, "b"), (6, "c"))]
        await session.close()
        await fork.close()
        return results

    results, _ = run_virtual(main())
    ok, over = ToolStatus.OK, ToolStatus.OVER_LIMIT
    assert [result.status for result in results] == [ok, over, ok, ok, ok, over, over]
    assert [result.text for result in results if result.status is over] == ["again", "enough", "enough"]
    assert dict(results[1].info) == {"repeated": True}


def test_in_a_tree_no_trajectory_runs_a_tool_more_often(tokenizer_folder):
    parts = agent(tokenizer_folder, ALWAYS, max_calls=6)
    limited = ToolSet(parts.environment.members, {"search": 1, "python": 1})
    parts = replace(parts, environment=limited)
    tree = grow_one(parts)
    over = 0
    for trajectory in tree.trajectories:
        ran = [
            run_call.name
            for run_call, result in trajectory.exchanges
            if result.status is not ToolStatus.OVER_LIMIT
        ]
        assert len(ran) == len(set(ran))
        over += len(trajectory.exchanges) - len(ran)
    assert over > 0
    assert all(grow_one(with_latencies(parts, seed)) == tree for seed in range(1, 5))


async def lookup(key: str, limit: int = 2) -> dict[str, list[int]]:
    """Looks a key up.

    Args:
        key: What to look for.
        limit: Most results.
    """
    return {key: list(range(limit))}


class Notes:
    """Keeps notes."""

    def __init__(self, problem):
        self.lines = [problem.id]

    def notes(self, line: str) -> str:
        """Adds a line and shows all of them."""
        self.lines.append(line)
        return " ".join(self.lines)

    def fork(self):
        other = Notes.__new__(Notes)
        other.lines = list(self.lines)
        return other


def own_agent(folder, tool, play, brancher, n, **options):
    parts = agent(folder, brancher, n=n, max_tokens=2000, **options)
    engine = ScriptedEngine(parts.renderer.tokenizer, play)
    return replace(parts, engine=engine, environment=ToolSet({tool.spec.name: tool}))


def test_a_policy_calls_with_json_reads_the_result_and_answers(tokenizer_folder, tmp_path):
    turns = [
        '<think> first </think> <lookup> {"key": "a"} </lookup>',
        '<lookup> {"key": "b", "limit": "3"} </lookup>',
        "<lookup> Paris </lookup>",
        '<lookup> {"limit": "many"} </lookup>',
        ANSWER,
    ]

    parts = own_agent(tokenizer_folder, tool_from(lookup), plays(*turns), FLAT, 1, max_calls=4)
    (tree,) = asyncio.run(grow_trees(parts, [problem()], 0))
    (trajectory,) = tree.trajectories
    assert trajectory.stop is StopReason.ANSWERED
    calls, results = zip(*trajectory.exchanges, strict=True)
    assert [dict(call.arguments) for call in calls] == [
        {"key": "a"},
        {"key": "b", "limit": "3"},
        {},
        {"limit": "many"},
    ]
    assert [(result.status, result.text) for result in results[:2]] == [
        (ToolStatus.OK, '{"a":[0,1]}'),
        (ToolStatus.OK, '{"b":[0,1,2]}'),
    ]
    assert [result.status for result in results[2:]] == [ToolStatus.MALFORMED] * 2
    assert "expected an object with key (string), limit (integer, optional)" in results[2].text
    assert "key: Field required; limit: Input should be a valid integer" in results[3].text
    assert ' <result>\n{"a":[0,1]}\n</result>' in tree.nodes[2].text
    assert tree.nodes[0].text.startswith("<|im_start|>user\nYou can call these tools.")
    assert "<lookup> {...} </lookup>: Looks a key up. The arguments" in tree.nodes[0].text
    assert_traced(tree, tmp_path)


def note(context, seed):
    """Two notes, each with the draw of its turn, then an answer; every result is worth a branch."""
    done = context.count("\n</result>")
    if done == 2:
        return ScriptedTurn(ANSWER, (3.0,))
    return ScriptedTurn(f"<notes> {seed % 1000} </notes>", (1.0 + done,))


def test_a_branch_takes_a_copy_of_the_state_and_both_go_on_apart(tokenizer_folder):
    brancher = ThresholdBrancher(m=2, min_entropy_delta=0.5, children=2, probe_tokens=3)
    parts = own_agent(tokenizer_folder, tool_from(Notes), note, brancher, 6)
    (tree,) = asyncio.run(grow_trees(parts, [problem()], 0))
    assert any(decision.taken for decision in tree.decisions)
    for trajectory in tree.trajectories:
        lines_shown = [result.text.split() for _, result in trajectory.exchanges]
        lines = [call.arguments["line"] for call, _ in trajectory.exchanges]
        assert lines_shown == [["p0", *lines[:1]], ["p0", *lines]]
    # Branches below one result share it and write different second notes.
    seconds = {}
    for trajectory in tree.trajectories:
        (first, _), (second, _) = trajectory.exchanges
        seconds.setdefault(first.id, set()).add(second.arguments["line"])
    assert max(map(len, seconds.values())) > 1


class Broken(Notes):
    def __init__(self, problem, part: str):
        super().__init__(problem)
        if part == "init":
            raise OSError("no room")

    def fork(self):
        raise OSError("no room")


@pytest.mark.parametrize(
    ("part", "message"), [("init", "no object could be created"), ("fork", "fork failed")]
)
def test_an_object_that_cannot_be_made_or_copied_costs_its_problem_or_its_branches(
    tokenizer_folder, part, message
):
    brancher = ThresholdBrancher(m=2, min_entropy_delta=0.5, children=2, probe_tokens=3)
    parts = own_agent(
        tokenizer_folder, tool_from(Broken, name="notes", args={"part": part}), note, brancher, 6
    )
    trees = asyncio.run(grow_trees(parts, [problem(), problem("p1")], 0))
    assert [tree.has_failed for tree in trees] == [part == "init"] * 2
    assert sum(decision.taken for tree in trees for decision in tree.decisions) == 0
    reasons = [event.fields["reason"] for event in parts.events.events if "reason" in event.fields]
    assert reasons
    assert all(f"Broken: {message}: OSError: no room" in reason for reason in reasons)
    assert parts.live.value == 0


KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
FIND, LOOKUP = (
    ToolSpec(name, f"Does {name}.", KEY, forks=True, timeout_seconds=5.0, in_prompt=True)
    for name in ("find", "lookup")
)
FOUND = "there is <lookup> key </lookup>"


@dataclass
class Library:
    """An environment whose first tool finds the second one."""

    tools: dict = field(default_factory=lambda: {"find": FIND})
    seconds: None = None
    branches: str = "fork"
    max_observations: int = 0
    scores: bool = False
    opens: bool = False

    async def open(self, problem, seed):
        return LibrarySession(dict(self.tools))


@dataclass
class LibrarySession:
    tools: dict
    opening: str = ""

    async def call(self, call):
        self.tools["lookup"] = LOOKUP
        return ToolResult(call.id, ToolStatus.OK, FOUND if call.name == "find" else "42")

    async def step(self, turn):
        return Observation()

    async def fork(self, seed):
        return LibrarySession(dict(self.tools))

    async def score(self, trajectory):
        return 0.0

    async def close(self):
        pass


def played(folder, turns, end, **parts):
    """The trajectory of these turns, each after one more result, and the requests."""

    def play(context, seed):
        text = turns[min(context.count(end), len(turns) - 1)]
        return ScriptedTurn(text, ends=not text.endswith((" </find>", " </lookup>")))

    plain = agent(folder, FlatBrancher(probe_tokens=0), n=1, max_tokens=900)
    engine = RecordingEngine(ScriptedEngine(plain.renderer.tokenizer, play))
    parts = replace(plain, engine=engine, environment=Library(), **parts)
    (tree,) = asyncio.run(grow_trees(parts, [problem()], 0))
    (trajectory,) = tree.trajectories
    return trajectory, engine.requests


def in_tags(name):
    return f"<{name}> a </{name}>"


def test_a_tag_is_text_until_its_tool_joins(tokenizer_folder):
    early, _ = played(tokenizer_folder, [f"{in_tags('lookup')} so"], "\n</result>")
    assert (early.stop, early.exchanges) == (StopReason.MALFORMED, ())

    turns = [in_tags("find"), in_tags("lookup"), ANSWER]
    trajectory, requests = played(tokenizer_folder, turns, "\n</result>")
    assert [call.name for call, _ in trajectory.exchanges] == ["find", "lookup"]
    assert trajectory.stop is StopReason.ANSWERED
    assert ["</lookup>" in request.stops for request in requests] == [False, True, True]
    assert [[spec.name for spec in request.tools] for request in requests] == [
        ["find"],
        ["find", "lookup"],
        ["find", "lookup"],
    ]
    prompt, _, result, *_ = trajectory.nodes
    assert "<find> key </find>: Does find." in prompt.text
    assert "lookup" not in prompt.text
    # No result forges the call of a tool that it brought.
    assert "there is &lt;lookup> key &lt;/lookup>" in result.text


def test_a_fresh_context_shows_the_tools_that_joined(tokenizer_folder):
    turns = [in_tags("find"), in_tags("lookup"), ANSWER]
    trajectory, _ = played(tokenizer_folder, turns, "\n</result>", rewriters=(FoldsMemory(1),))
    fresh = next(node for node in trajectory.nodes if node.context == "fresh")
    assert fresh.source is Source.TOOL
    assert "<find> key </find>: Does find.\n<lookup> key </lookup>: Does lookup." in fresh.text
    assert [call.name for call, _ in trajectory.exchanges] == ["find", "lookup"]


@pytest.mark.parametrize(
    ("names", "statuses"),
    [
        (("lookup",), [ToolStatus.UNKNOWN_TOOL]),
        (("find", "lookup"), [ToolStatus.OK, ToolStatus.OK]),
    ],
)
def test_json_names_a_tool_that_is_not_in_force_yet(tmp_path, names, statuses):
    folder = write_hermes_tokenizer(tmp_path, QWEN3)
    calls = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'key': 'a'}})}\n</tool_call>"
        for name in names
    ]
    renderer = HermesRenderer(agent(folder, FlatBrancher(probe_tokens=0)).renderer.tokenizer)
    trajectory, _ = played(folder, [*calls, "42"], "</tool_response>", renderer=renderer)
    assert [result.status for _, result in trajectory.exchanges] == statuses
    assert trajectory.stop is StopReason.ANSWERED
    assert "Does find." in trajectory.nodes[0].text
    assert "Does lookup." not in trajectory.nodes[0].text
