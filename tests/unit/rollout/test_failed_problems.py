"""Whatever the content of one problem does, its own tree or trajectory fails, and the others are as if it were not there."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.tag_renderer import TagRenderer
from ramify.core.errors import DataError, EngineError, MachineError
from ramify.core.messages import Message, Problem
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import StopReason
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.obs.tree_metrics import tree_metrics
from ramify.rollout.grow import grow_trees
from ramify.tools.class_environment import environment_from
from scripted_agents import WrappedEngine, agent, tokenizer_of

WHOLE = (
    "long",
    "huge",
    "raises",
    "no text",
    "exits",
    "interrupts",
    "nothing",
    "column",
    "constructor",
    "render",
    "recursion",
    "hangs",
)
"""What fails a whole problem."""
PART = ("result", "parse", "score")
"""What fails trajectories in the middle."""


class World:
    def __init__(self, problem):
        if problem.info.get("what") == "constructor":
            raise ValueError("no such world")

    def reset(self, what, **row):
        self.what = what
        if what == "raises":
            raise OSError("no such room")
        if what == "exits":
            raise SystemExit(3)
        if what == "interrupts":
            raise KeyboardInterrupt
        openings = {"long": "a word " * 400, "huge": "x" * 30_000, "no text": 7, "nothing": ""}
        return openings.get(what, f"[{what}]")

    async def look(self) -> str:
        """Look around."""
        return f"[{self.what}] seen"

    def get_reward(self):
        return float("nan") if self.what == "score" else 1.0


class HangingWorld(World):
    async def reset(self, what, **row):
        if what == "hangs":
            await asyncio.sleep(100)
        return super().reset(what, **row)


class Picky(TagRenderer):
    """Cannot handle some texts."""

    def render_prompt(self, problem, tools):
        text = problem.messages[-1].text
        if "[render]" in text:
            raise DataError("the chat template refuses it")
        if "[recursion]" in text:
            raise RecursionError("maximum recursion depth exceeded")
        return super().render_prompt(problem, tools)

    def render_results(self, results, tools, names=()):
        if any("[result]" in result.text for result in results):
            raise MemoryError("too long")
        return super().render_results(results, tools, names)

    def parse(self, turn, tools):
        if "[parse]" in turn:
            raise IndexError("string index out of range")
        return super().parse(turn, tools)


def play(context, seed):
    if "[parse]" in context:
        return ScriptedTurn("[parse] <look> {} </look>", (1.0,))
    if "seen" in context:
        return ScriptedTurn("<answer> done </answer>", (1.0,), ends=True)
    return ScriptedTurn("<look> {} </look>", (1.0,))


def parts_of(folder, seconds=60.0):
    tokenizer = tokenizer_of(folder)
    environment = environment_from(HangingWorld, timeout_seconds=seconds)
    return replace(
        agent(folder, FlatBrancher(probe_tokens=2), n=3, max_calls=3, max_tokens=300),
        engine=ScriptedEngine(tokenizer, play, 1000),
        renderer=Picky(tokenizer),
        environment=environment,
    )


def problem(number, what):
    info = {} if what == "column" else {"what": what}
    return Problem(f"p{number}", (Message.of("user", " " if what == "nothing" else "Go."),), (), info)


def grown(parts, problems):
    return asyncio.run(grow_trees(parts, problems, 0))


@given(st.lists(st.sampled_from((*WHOLE[:-1], *PART, "plain", "plain")), min_size=2, max_size=6))
@settings(max_examples=25, deadline=None)
def test_the_others_are_as_if_the_bad_problems_were_not_there(tokenizer_folder, what):
    problems = [problem(number, each) for number, each in enumerate(what)]
    parts = parts_of(tokenizer_folder)
    trees = grown(parts, problems)
    plain = grown(parts_of(tokenizer_folder), [problem(number, "plain") for number in range(len(what))])
    for each, tree, other in zip(what, trees, plain, strict=True):
        assert len(tree.trajectories) == 3
        assert tree.has_failed == (each in WHOLE or each in PART)
        if each == "plain":
            assert tree == other
        if each in WHOLE:
            assert sum(len(node.token_ids) for node in tree.nodes) == 0
    failed = Counter(
        event.fields["problem"] for event in parts.events.events if event.kind == "problem/failed"
    )
    assert failed == {p.id: 1 for p, tree in zip(problems, trees, strict=True) if tree.has_failed}
    scored = [ScoredTree(tree, (Reward(0.0, {}),) * 3) for tree in trees]
    assert tree_metrics(scored)["group/failed"] == len(failed)


def test_a_reset_that_hangs_costs_its_problem_one_deadline(tokenizer_folder):
    parts = parts_of(tokenizer_folder, seconds=0.2)
    hanging, plain = grown(parts, [problem(0, "hangs"), problem(1, "plain")])
    assert hanging.has_failed
    assert {trajectory.stop for trajectory in plain.trajectories} == {StopReason.ANSWERED}
    reasons = [event.fields["reason"] for event in parts.events.events if "reason" in event.fields]
    assert reasons == ["it did not answer in time"] * 2


class Gone(WrappedEngine):
    error = None

    async def generate(self, request):
        raise self.error


@pytest.mark.parametrize("error", [EngineError("gone"), MachineError("no memory"), RuntimeError("CUDA")])
def test_an_error_of_the_engine_ends_the_run(tokenizer_folder, error):
    parts = parts_of(tokenizer_folder)
    engine = Gone(parts.engine)
    engine.error = error
    with pytest.raises(type(error), match=str(error)):
        grown(replace(parts, engine=engine), [problem(0, "plain")])
