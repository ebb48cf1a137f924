"""Trees in the hermes dialect: several calls a turn, and turns that only the end token ends."""

import json
from dataclasses import replace

import pytest

from hermes_folders import FAMILIES, write_hermes_tokenizer
from ramify.algos.branch_rules import FlatBrancher, RandomBrancher
from ramify.chat.hermes import HermesRenderer
from ramify.chat.hermes_turn import UNREADABLE
from ramify.core.messages import Calls, Final, MalformedTurn, ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.engines.scripted import ScriptedTurn
from scripted_agents import SlowTool, agent, grow_one

ANSWER = "<think>\nso\n</think>\n\n\\boxed{42}"


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def played(folder, brancher, first, *, ends=True, **settings):
    """The tree of a policy that writes `first`, and answers when it has seen results."""

    def play(context, seed):
        return ScriptedTurn(ANSWER if "</tool_response>" in context else first, ends=ends)

    parts = agent(folder, brancher, play, **settings)
    renderer = HermesRenderer(parts.renderer.tokenizer)
    return grow_one(agent(folder, brancher, play, renderer=renderer, **settings)), renderer


@pytest.fixture(scope="module", params=FAMILIES)
def folder(tmp_path_factory, request):
    return write_hermes_tokenizer(tmp_path_factory.mktemp("hermes"), request.param)


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_calls_of_one_turn_run_in_order_and_their_results_are_one_node(folder, branch_at):
    turn = f"{call('search', query='a')}\n{call('python', code='b')}\n{call('search', query='c')}"
    tree, renderer = played(
        folder, RandomBrancher(m=2, rate=1.0, children=1, probe_tokens=3), turn, n=4, branch_at=branch_at
    )
    branched = sum(decision.taken for decision in tree.decisions)
    assert branched == 2
    for trajectory in tree.trajectories:
        assert trajectory.stop is StopReason.ANSWERED
        assert trajectory.leaf.turn == Final("\\boxed{42}")
        calls = [(each.name, *each.arguments.values()) for each, _ in trajectory.exchanges]
        assert calls == [("search", "a"), ("python", "b"), ("search", "c")]
        _, wrote, tool, *_ = trajectory.nodes
        assert wrote.token_ids == (*renderer.tokenizer.encode(turn), renderer.tokenizer.eos_id)
        assert tool.token_ids == renderer.render_results(tool.results, ())
        assert [node.source for node in trajectory.nodes].count(Source.TOOL) == 1


class Pays(SlowTool):
    """A tool that pays for each call, and ends the trajectory at the second one."""

    def session(self, calls):
        session = super().session(calls)
        answer = session.call

        async def pay(call):
            result = await answer(call)
            return replace(result, reward=1.0, ends=session.calls == 2)

        session.call = pay
        return session


def test_calls_after_one_that_ends_the_trajectory_are_neither_run_nor_paid(folder):
    turn = "\n".join([call("search", query="a")] * 4)
    tree, _ = played(
        folder,
        FlatBrancher(probe_tokens=0),
        turn,
        n=1,
        max_calls=4,
        tools={"search": Pays("search", "query")},
    )
    (trajectory,) = tree.trajectories
    results = [result for _, result in trajectory.exchanges]
    assert [(result.status, result.reward) for result in results] == [
        (ToolStatus.OK, 1.0),
        (ToolStatus.OK, 1.0),
        (ToolStatus.ERROR, 0.0),
        (ToolStatus.ERROR, 0.0),
    ]
    assert "was not run" in results[2].text
    assert (trajectory.stop, trajectory.paid) == (StopReason.ENDED, 2.0)


def test_what_cannot_be_run_is_told(folder):
    turn = f"{call('lookup', key='a')}\n<tool_call>\nsearch a\n</tool_call>\n{call('search', query='b')}"
    tree, _ = played(folder, FlatBrancher(probe_tokens=0), turn, n=1)
    (trajectory,) = tree.trajectories
    assert [(each.name, result.status) for each, result in trajectory.exchanges] == [
        ("lookup", ToolStatus.UNKNOWN_TOOL),
        (UNREADABLE, ToolStatus.MALFORMED),
        ("search", ToolStatus.OK),
    ]
    assert trajectory.stop is StopReason.ANSWERED


def test_a_long_name_and_many_tools_make_no_long_result(folder):
    tools = {name: SlowTool(name, "query") for name in map("tool_{}".format, range(20))}
    turn = f"{call('x', key='a')}\n{call('y' * 1000, key='a')}"
    tree, _ = played(
        folder,
        FlatBrancher(probe_tokens=0),
        turn,
        n=1,
        tools=tools,
        max_tokens=5000,
        limits={"max_result_chars": 300},
    )
    (trajectory,) = tree.trajectories
    short, long = (result.text for _, result in trajectory.exchanges)
    assert short.endswith(" tool_14, tool_15 and 4 more.")
    assert long.startswith("There is no tool named yyy")
    assert long[300:].startswith("\n[cut: ")


def test_a_turn_with_more_calls_than_are_left_ends_the_trajectory(folder):
    turn = "\n".join([call("search", query="a")] * 3)
    tree, _ = played(folder, FlatBrancher(probe_tokens=0), turn, n=1, max_calls=2)
    (trajectory,) = tree.trajectories
    assert (trajectory.stop, trajectory.exchanges) == (StopReason.CALLS, ())
    assert isinstance(trajectory.leaf.turn, Calls)


@pytest.mark.parametrize(
    ("turn", "stop", "parsed"),
    [
        ("42 " * 300, StopReason.TOKENS, MalformedTurn("the turn does not end")),
        ("<think> 42", StopReason.MALFORMED, MalformedTurn("the turn ends in a thought")),
        ("so\n<tool_response>\n42", StopReason.MALFORMED, MalformedTurn("the turn writes a result itself")),
    ],
)
def test_how_a_trajectory_ends(folder, turn, stop, parsed):
    tree, _ = played(folder, FlatBrancher(probe_tokens=0), turn, n=1)
    (trajectory,) = tree.trajectories
    assert (trajectory.stop, trajectory.leaf.turn) == (stop, parsed)
