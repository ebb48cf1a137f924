"""Tools of the user's own in the agent loop: a policy calls them, and their state goes on apart in a branch."""

import asyncio
from dataclasses import replace

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.tag_renderer import TagRenderer
from ramify.core.messages import ToolStatus
from ramify.core.records import Reward
from ramify.core.tree import StopReason
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.obs.trace import TracedTree, read_trees, write_trees
from ramify.rollout.grow import grow_trees
from ramify.rollout.tool_set import ToolSet
from ramify.tools.functions import tool_from
from scripted_agents import agent, problem, tokenizer_of


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
    tokenizer = tokenizer_of(folder)
    parts = agent(folder, brancher, n=n, max_tokens=2000, **options)
    return replace(
        parts,
        engine=ScriptedEngine(tokenizer, play),
        renderer=TagRenderer(tokenizer),
        environment=ToolSet({tool.spec.name: tool}),
    )


def test_a_policy_calls_with_json_reads_the_result_and_answers(tokenizer_folder, tmp_path):
    turns = [
        '<think> first </think> <lookup> {"key": "a"} </lookup>',
        '<lookup> {"key": "b", "limit": "3"} </lookup>',
        "<lookup> Paris </lookup>",
        '<lookup> {"limit": "many"} </lookup>',
        "<answer> \\boxed{ 42 } </answer>",
    ]

    def play(context, seed):
        return ScriptedTurn(turns[context.count("\n</result>")])

    parts = own_agent(tokenizer_folder, tool_from(lookup), play, FlatBrancher(probe_tokens=3), 1, max_calls=4)
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
    traced = TracedTree(tree, (Reward(0.0, {}),))
    write_trees(tmp_path / "0.jsonl", [traced])
    assert read_trees(tmp_path / "0.jsonl") == (traced,)


def note(context, seed):
    """Two notes, each with the draw of its turn, then an answer; every result is worth a branch."""
    done = context.count("\n</result>")
    if done == 2:
        return ScriptedTurn("<answer> \\boxed{ 42 } </answer>", (3.0,))
    return ScriptedTurn(f"<notes> {seed % 1000} </notes>", (1.0 + done,))


def test_a_branch_takes_a_copy_of_the_state_and_both_go_on_apart(tokenizer_folder):
    brancher = ThresholdBrancher(m=2, min_entropy_delta=0.5, children=2, probe_tokens=3)
    parts = own_agent(tokenizer_folder, tool_from(Notes), note, brancher, 6)
    (tree,) = asyncio.run(grow_trees(parts, [problem()], 0))
    assert any(decision.taken for decision in tree.decisions)
    for trajectory in tree.trajectories:
        told = [result.text.split() for _, result in trajectory.exchanges]
        lines = [call.arguments["line"] for call, _ in trajectory.exchanges]
        assert told == [["p0", *lines[:1]], ["p0", *lines]]
    # Branches below one result share it and write different second notes.
    seconds = {}
    for trajectory in tree.trajectories:
        (first, _), (second, _) = trajectory.exchanges
        seconds.setdefault(first.id, set()).add(second.arguments["line"])
    assert max(map(len, seconds.values())) > 1


def test_an_agent_with_a_state_that_cannot_be_copied_does_not_branch(tokenizer_folder):
    class Notebook(Notes):
        fork = None

    brancher = ThresholdBrancher(m=2, min_entropy_delta=0.5, children=2, probe_tokens=3)
    parts = own_agent(tokenizer_folder, tool_from(Notebook, name="notes"), note, brancher, 4)
    (tree,) = asyncio.run(grow_trees(parts, [problem()], 0))
    assert not parts.environment.members["notes"].spec.forks
    assert tree.decisions == ()
    assert len({trajectory.nodes[1].id for trajectory in tree.trajectories}) == 4


class Broken(Notes):
    def __init__(self, problem, part: str):
        super().__init__(problem)
        self.part = part
        if part == "init":
            raise OSError("no room")

    def fork(self):
        raise OSError("no room")


@pytest.mark.parametrize(("part", "told"), [("init", "no object could be created"), ("fork", "fork failed")])
def test_an_object_that_cannot_be_made_or_copied_costs_its_problem_or_its_branches(
    tokenizer_folder, part, told
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
    assert all(f"Broken: {told}: OSError: no room" in reason for reason in reasons)
    assert parts.live.value == 0
