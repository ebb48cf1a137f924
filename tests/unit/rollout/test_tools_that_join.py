"""A tool that joins those in force during a trajectory can be called from then on.

No dialect announces it in the context that has begun: the result that brought it speaks of it, or a fresh context shows it.
"""

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest

from hermes_folders import QWEN3, write_hermes_tokenizer
from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.hermes import HermesRenderer
from ramify.core.messages import Observation, ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.rollout.grow import grow_trees
from scripted_agents import FoldsMemory, RecordingEngine, agent, problem

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


ANSWER = "<answer> 42 </answer>"


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
