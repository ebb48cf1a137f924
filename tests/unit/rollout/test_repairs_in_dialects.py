"""Texts that begin a turn: notes, shorter texts and hints, where the chat template opens the thought and where it does not."""

import json
from dataclasses import dataclass, replace

import pytest

from harmony_folders import write_harmony_tokenizer
from hermes_folders import QWEN3, QWEN25, write_hermes_tokenizer, write_opening_tokenizer
from llama3_folders import write_llama3_tokenizer
from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.hermes import HermesRenderer
from ramify.chat.renderers import renderer_for
from ramify.chat.tag_renderer import TagRenderer
from ramify.core.messages import Final, ToolStatus
from ramify.core.records import ContinueFrom
from ramify.core.tree import Cut, Source, StopReason
from ramify.engines.scripted import ScriptedTurn
from ramify.rollout.plan import state_after
from ramify.rollout.repair import Backtracer, Refiner
from repair_agents import ScriptedHelper, SeesAll, helper_of, tools
from scripted_agents import RecordingEngine, agent, grow_one, tokenizer_of, with_engine

FLAT = FlatBrancher(probe_tokens=0)


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass
class Dialect:
    """A renderer; a turn that fails at its beginning, a long one that searches, an answer behind a whole thought, and a thought
    that is not in `<think>`.
    """

    renderer: object
    fails: str
    long: str
    answer: str = "<answer> \\boxed{ 42 } </answer>"
    hint: str = ""


@pytest.fixture(scope="module", params=["tags", QWEN25, QWEN3, "opened", "llama3", "harmony"])
def dialect(request, tmp_path_factory, tokenizer_folder):
    words = "find the number and " * 8
    if request.param == "tags":
        renderer = TagRenderer(tokenizer_of(tokenizer_folder))
        return Dialect(
            renderer, "<python> print( </python>", f"<think> {words}</think><search> Paris </search>"
        )
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llama3":
        renderer = renderer_for("llama3", tokenizer_of(write_llama3_tokenizer(folder)))
        python, search = (
            json.dumps({"name": name, "parameters": arguments})
            for name, arguments in (("python", {"code": "print("}), ("search", {"query": "Paris"}))
        )
        return Dialect(renderer, python, f"<think>{words}</think>{search}", "The answer is 42.")
    if request.param == "harmony":
        renderer = renderer_for("harmony", tokenizer_of(write_harmony_tokenizer(folder)))
        header = " to=functions.{}<|channel|>commentary json<|message|>{}"
        thought = f"<|channel|>analysis<|message|>{words}<|end|><|start|>assistant"
        return Dialect(
            renderer,
            header.format("python", '{"code": "print("}'),
            thought + header.format("search", '{"query": "Paris"}'),
            "<|channel|>final<|message|>The answer is 42.",
            thought.replace(words, "ask again"),
        )
    if request.param == "opened":
        write_opening_tokenizer(folder)
        opening = ""
    else:
        write_hermes_tokenizer(folder, request.param)
        opening = "<think>\n"
    renderer = HermesRenderer(tokenizer_of(folder))
    first = "print at once\n</think>\n\n" if request.param == "opened" else ""
    return Dialect(
        renderer,
        first + call("python", code="print("),
        f"{opening}{words}\n</think>\n\n" + call("search", query="Paris"),
        "The answer is 42.",
    )


def grown(dialect, play, rewriters, temperature=1.0):
    folder = dialect.renderer.tokenizer.folder
    parts = agent(
        folder,
        FLAT,
        play,
        n=1,
        tools=tools(),
        renderer=dialect.renderer,
        rewriters=rewriters,
        limits={"temperature": temperature},
    )
    parts = with_engine(with_engine(parts, SeesAll), RecordingEngine)
    (trajectory,) = grow_one(parts).trajectories
    return parts, trajectory


def is_answered(parts, trajectory):
    assert trajectory.stop is StopReason.ANSWERED, trajectory.leaf
    assert isinstance(trajectory.leaf.turn, Final)
    assert "42" in trajectory.final_answer
    at = next(index for index, node in enumerate(trajectory.nodes) if node.rewriter)
    node = trajectory.nodes[at]
    # What begins the turn belongs to it: for the engine, and for a trajectory that goes on from there later.
    request = parts.engine.requests[-1]
    assert request.stop_context == len(node.token_ids) > 0
    after = state_after(parts, trajectory.problem, trajectory.nodes[: at + 1])
    assert (after.shared, after.context) == (request.stop_context, request.token_ids)
    assert after.shared_text == node.text


def test_a_note_where_the_turn_begins(dialect):
    def play(context, seed):
        if "An attempt at this failed" in context:
            return ScriptedTurn(dialect.answer, ends=True)
        return ScriptedTurn(dialect.fails, ends=dialect.renderer.ends_each_turn)

    parts, trajectory = grown(dialect, play, (Backtracer(dialect.renderer, 0.0, 1),), 0.0)
    gone = next(node for node in trajectory.nodes if node.rewriter)
    assert gone.results[0].status is ToolStatus.ERROR
    if gone.context == Cut("", len(trajectory.nodes[0].token_ids)):
        is_answered(parts, trajectory)
    else:
        assert trajectory.stop is StopReason.ANSWERED


def test_a_shorter_text(dialect):
    def play(context, seed):
        if "12 and 30" in context:
            return ScriptedTurn(dialect.answer, ends=True)
        return ScriptedTurn(dialect.long, ends=dialect.renderer.ends_each_turn)

    refiner = Refiner(dialect.renderer, helper_of(ScriptedHelper(["it is 12 and 30"])), 30, 1)
    parts, trajectory = grown(dialect, play, (refiner,))
    is_answered(parts, trajectory)


class BeginsAgain:
    """Goes on from the prompt with a text that closes a thought, if the template has opened one, or opens none."""

    name = "hint"
    budget = 1

    def __init__(self, text):
        self.text = text

    async def rewrite(self, trajectory, tools):
        if trajectory.leaf.source is not Source.TOOL:
            return None
        prompt = trajectory.nodes[0]
        return ContinueFrom(Cut("", len(prompt.token_ids)), self.text)


def test_a_hint_that_closes_the_thought(dialect):
    opens = (
        ""
        if dialect.renderer.parse(f"so </think> 42{dialect.renderer.ends[0]}", ()) == Final("42")
        else "<think> "
    )

    def play(context, seed):
        if "ask again" in context:
            return ScriptedTurn(dialect.answer, ends=True)
        return ScriptedTurn(dialect.long, ends=dialect.renderer.ends_each_turn)

    parts, trajectory = grown(dialect, play, (BeginsAgain(dialect.hint or f"{opens}ask again </think> "),))
    is_answered(parts, trajectory)


@pytest.mark.parametrize("dialect", [QWEN25, QWEN3, "opened"], indirect=True)
def test_the_backtracer_finds_a_later_failure_of_the_turn(dialect):
    opening = dialect.long.partition("find")[0]
    first = (
        f"{opening}I do both. Now\n</think>\n\n{call('search', query='a')}\n{call('python', code='print(')}"
    )

    def play(context, seed):
        if "<tool_response>" in context or "failed" in context:
            return ScriptedTurn(dialect.answer, ends=True)
        return ScriptedTurn(first, ends=True)

    _, trajectory = grown(dialect, play, (Backtracer(dialect.renderer, 1.0, 1),))
    gone = next(node for node in trajectory.nodes if node.rewriter)
    assert [result.status for result in gone.results] == [ToolStatus.OK, ToolStatus.ERROR]


def test_behind_a_turn_that_has_ended_a_text_stands_in_the_place_of_its_results(dialect):
    """It belongs to no turn, and a text behind it begins one."""

    def play(context, seed):
        return ScriptedTurn(dialect.long, ends=dialect.renderer.ends_each_turn)

    parts, trajectory = grown(dialect, play, ())
    prompt, turn, result, again, *_ = trajectory.nodes
    names = [each.name for each in turn.calls]
    assert result.token_ids == dialect.renderer.render_results(result.results, (), names)
    whole = Cut(turn.id, len(turn.token_ids))
    first = replace(result, id="9", parent=again.id, context=whole, rewriter="a", results=())
    path = (prompt, turn, result, replace(again, turn=turn.turn), first)
    assert state_after(parts, trajectory.problem, path).shared == 0
    second = replace(first, id="10", context=Cut("9", len(first.token_ids)))
    assert state_after(parts, trajectory.problem, (*path, second)).shared == len(first.token_ids)
    inside = replace(first, id="10", context=Cut("9", 1))
    assert state_after(parts, trajectory.problem, (*path, inside)).shared == 0
    in_prompt = replace(first, id="10", context=Cut("", 1))
    assert state_after(parts, trajectory.problem, (*path, in_prompt)).shared == 0
