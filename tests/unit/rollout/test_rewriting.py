"""Contexts that are replaced in mid-trajectory: folded memory, repair, and what does not fit."""

import asyncio
import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from ramify.core.messages import Final, MalformedTurn, Message
from ramify.core.records import ContinueFrom, FreshContext
from ramify.core.tree import Cut, Source, StopReason
from ramify.engines.scripted import ScriptedTurn
from ramify.rewards.configs import AnswerRewardConfig
from ramify.rewards.trajectory_rewards import AnswerReward
from ramify.rollout.rewriting import FunctionRewriter
from scripted_agents import (
    ALWAYS,
    FLAT,
    Backtracks,
    FoldsMemory,
    RecordingEngine,
    agent,
    assert_traced,
    grow,
    grow_one,
    tokenizer_of,
    with_engine,
    with_latencies,
)

BRANCH_AT = ["before_probe", "after_probe"]


def folding(folder, rule=ALWAYS, after=2, **options):
    return with_engine(agent(folder, rule, rewriters=(FoldsMemory(after),), **options), RecordingEngine)


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_a_trajectory_of_two_contexts_is_what_the_engine_saw(tokenizer_folder, branch_at):
    parts = folding(tokenizer_folder, branch_at=branch_at)
    tree = grow_one(parts)
    assert len(tree.trajectories) == 8
    folded = [trajectory for trajectory in tree.trajectories if len(trajectory.segments) == 2]
    assert len(folded) > 0
    requests = {request.priority[1:]: request.token_ids for request in parts.engine.requests}
    for trajectory in folded:
        first, second = trajectory.segments
        opening = second.nodes[0]
        assert opening.source is Source.TOOL
        assert opening.context == "fresh"
        assert opening.parent == first.nodes[-1].id
        assert opening.text == parts.renderer.decode(opening.token_ids)
        assert opening.text.startswith(first.nodes[0].text.split("<|im_end|>")[0])
        assert len(opening.results) == len(first.nodes[-1].calls) == 1
        ids = ()
        for node in second.nodes:
            if node.source is Source.POLICY and node.path in requests:
                assert requests[node.path][: len(ids)] == ids
            ids += node.token_ids
        assert len(trajectory.exchanges) >= 2
        assert second.token_ids[: len(opening.token_ids)] == opening.token_ids
        assert not any(second.written[: len(opening.token_ids)])


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_branches_hang_at_the_fresh_context(tokenizer_folder, branch_at):
    tree = grow_one(folding(tokenizer_folder, branch_at=branch_at, after=1))
    taken = [decision for decision in tree.decisions if decision.taken and decision.depth == 1]
    assert taken
    for decision in taken:
        path = tree.path_to(tree.by_id[decision.node])
        opening = path[-1] if branch_at == "before_probe" else path[-2]
        assert opening.context == "fresh"
        children = tree.children[decision.node]
        assert len(children) == 1 + decision.taken


def test_the_trace_gives_two_contexts_back_and_the_reward_sees_the_whole_trajectory(
    tokenizer_folder, tmp_path
):
    tree = grow_one(folding(tokenizer_folder))
    rewards = tuple(asyncio.run(AnswerReward(AnswerRewardConfig(score="em")).score(tree.trajectories)))
    answered = [t.stop is StopReason.ANSWERED for t in tree.trajectories]
    assert [reward.value >= 1.0 for reward in rewards] == answered
    both = [{call.name for call, _ in t.exchanges} == {"search", "python"} for t in tree.trajectories]
    assert [reward.parts["bonus"] > 0 for reward in rewards] == [
        all(pair) for pair in zip(both, answered, strict=True)
    ]
    assert_traced(tree, tmp_path, rewards)


@dataclass
class Repairs:
    """After a malformed end: the prompt and a hint; told what it was asked."""

    requests: list = field(default_factory=list)
    name = "repairs"
    budget = 3

    async def rewrite(self, trajectory, tools):
        self.requests.append(trajectory)
        if trajectory.leaf.stop is not StopReason.MALFORMED:
            return None
        (question,) = trajectory.problem.messages
        return FreshContext((Message.of("user", f"{question.text} answer please"),))


def careless(context, seed):
    """Ends its turn with nothing, and answers when it is told."""
    text = "<answer> \\boxed{ 42 } </answer>" if "answer please" in context else "<think> so </think>"
    return ScriptedTurn(text, ends=True)


def test_a_malformed_end_can_be_repaired(tokenizer_folder):
    rewriter = Repairs()
    tree = grow_one(agent(tokenizer_folder, FLAT, careless, n=2, rewriters=(rewriter,)))
    for trajectory in tree.trajectories:
        assert trajectory.stop is StopReason.ANSWERED
        assert len(trajectory.segments) == 2
        assert trajectory.exchanges == ()
        _, wrong, opening, right = trajectory.nodes
        assert (wrong.stop, opening.results) == (None, ())
        assert isinstance(wrong.turn, MalformedTurn)
        assert right.turn == Final("\\boxed{ 42 }")
        assert opening.context == "fresh"
        assert trajectory.num_written == len(wrong.token_ids) + len(right.token_ids)
    stops = [trajectory.leaf.stop for trajectory in rewriter.requests]
    assert sorted(map(str, stops)) == ["answered"] * 2 + ["malformed"] * 2


def test_a_repair_is_no_tool_result_to_branch_from(tokenizer_folder):
    tree = grow_one(agent(tokenizer_folder, ALWAYS, careless, n=4, rewriters=(Repairs(),)))
    assert tree.decisions == ()
    assert len(tree.children[""]) == 4


@dataclass
class Always:
    """Goes on from the prompt with so many words whenever it is asked."""

    size: int
    requests: int = 0
    name = "always"
    budget = 1000

    async def rewrite(self, trajectory, tools):
        self.requests += 1
        return ContinueFrom(Cut("", len(trajectory.nodes[0].token_ids)), "a" * self.size)


@pytest.mark.parametrize("text", ["<think> so </think>", "<search> Paris </search>", "a b c d e f " * 90])
@pytest.mark.parametrize("size", [1, 7, 150, 399, 400, 5000])
def test_a_trajectory_that_is_rewritten_for_ever_ends_with_its_tokens(tokenizer_folder, text, size):
    """MalformedTurn ends, calls beyond the limit and turns without an end: each goes on until nothing is left."""
    rewriter = Always(size)
    parts = agent(
        tokenizer_folder, FLAT, lambda c, s: ScriptedTurn(text), n=1, max_calls=2, rewriters=(rewriter,)
    )
    tree = grow_one(parts)
    (trajectory,) = tree.trajectories
    assert sum(len(node.token_ids) for node in trajectory.nodes[1:]) <= 400
    assert trajectory.stop in (StopReason.TOKENS, StopReason.MALFORMED, StopReason.CALLS)
    assert len(trajectory.exchanges) <= 2
    assert all(node.token_ids for node in trajectory.nodes)
    if size < 150:
        assert len(trajectory.segments) > 1 or text.startswith("a b")
    if size >= 399:
        assert len(trajectory.segments) == 1
    assert rewriter.requests <= 400


def test_a_context_that_the_engine_cannot_take_is_ignored(tokenizer_folder):
    parts = agent(tokenizer_folder, FLAT, careless, n=1, rewriters=(Always(500),))
    info = replace(parts.engine.info(), context_tokens=40)
    parts.engine.info = lambda: info
    (trajectory,) = grow_one(parts).trajectories
    assert (trajectory.stop, len(trajectory.segments)) == (StopReason.MALFORMED, 1)


def test_a_fresh_context_makes_room_in_the_engine(tokenizer_folder):
    """Without it the second result would not fit the engine's context."""

    def outcomes(*rewriters):
        parts = agent(tokenizer_folder, FLAT, rewriters=rewriters, n=6)
        info = replace(parts.engine.info(), context_tokens=80)
        parts.engine.info = lambda: info
        return [trajectory.stop for trajectory in grow_one(parts).trajectories]

    cut = outcomes().count(StopReason.TOKENS)
    assert outcomes(FoldsMemory(1)).count(StopReason.TOKENS) < cut


class Hangs:
    """Never gives a context, and does not agree to be cancelled."""

    name = "hangs"
    budget = 1

    async def rewrite(self, trajectory, tools):
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(1e6)


def test_a_rewriter_that_hangs_is_cut_with_its_trajectory(tokenizer_folder):
    parts = agent(
        tokenizer_folder, FLAT, careless, n=2, rewriters=(Hangs(),), limits={"trajectory_seconds": 60.0}
    )
    (tree,), seconds = grow(parts, left_tasks=2)
    assert seconds == pytest.approx(60.0, abs=0.2)
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.DEADLINE}
    assert all(trajectory.num_written for trajectory in tree.trajectories)


SEARCHES = "<think> so we look it up now </think><search> Paris </search>"
ANSWERS = "<think> so we say it right now </think><answer> \\boxed{ 42 } </answer>"


def searches(context, seed):
    """Searches, and answers once it has heard anything after that."""
    return ScriptedTurn(ANSWERS if "</result>" in context or "hm" in context else SEARCHES, (1.0,))


def backtracking(folder, rewriter, *, rule=FLAT, n=1, play=searches, **options):
    return with_engine(agent(folder, rule, play, n=n, rewriters=(rewriter,), **options), RecordingEngine)


@pytest.mark.parametrize("branch_at", BRANCH_AT)
@pytest.mark.parametrize("rule", [FLAT, ALWAYS])
def test_going_back_into_a_turn_keeps_its_first_tokens_and_goes_on_as_one_turn(
    tokenizer_folder, rule, branch_at
):
    parts = backtracking(tokenizer_folder, Backtracks(1), rule=rule, n=4, branch_at=branch_at)
    for trajectory in grow_one(parts).trajectories:
        _, turn, note, last, *_ = trajectory.nodes
        half = len(turn.token_ids) // 2
        assert note.context == Cut(turn.id, half)
        assert [result.text for result in note.results] == [trajectory.exchanges[0][1].text]
        first, second = trajectory.segments
        prefix = first.token_ids[: len(trajectory.nodes[0].token_ids) + half]
        assert first.nodes == trajectory.nodes[:2]
        assert second.token_ids[: len(prefix) + len(note.token_ids)] == prefix + note.token_ids
        assert parts.renderer.decode(note.token_ids) == " hm"
        request = next(r for r in parts.engine.requests if r.priority[1:] == last.path)
        assert request.token_ids == prefix + note.token_ids
        assert request.stop_context == half + len(note.token_ids)
        (call,) = last.calls
        assert (call.name, call.arguments) == ("search", {"query": "Paris"})
        assert trajectory.stop is StopReason.ANSWERED
        assert trajectory.num_written == sum(len(n.token_ids) for n in trajectory.policy_nodes)


def test_going_back_to_the_end_of_the_prompt_begins_a_turn(tokenizer_folder):
    parts = backtracking(tokenizer_folder, Backtracks(1, node="", tokens=3))
    (trajectory,) = grow_one(parts).trajectories
    prompt, _, note, last = trajectory.nodes
    assert note.context == Cut("", 3)
    assert trajectory.segments[-1].token_ids == prompt.token_ids[:3] + note.token_ids + last.token_ids
    assert last.turn == Final("\\boxed{ 42 }")


@pytest.mark.parametrize("text", ["", " hm"])
def test_going_back_twice_into_one_turn(tokenizer_folder, text):
    class Twice(Backtracks):
        async def rewrite(self, trajectory, tools):
            # The second time back into what was added or written after the first.
            self.after = len(trajectory.exchanges)
            return await super().rewrite(trajectory, tools)

    parts = backtracking(
        tokenizer_folder, Twice(1, text, tokens=2, budget=2), play=lambda c, s: searches("", s)
    )
    (trajectory,) = grow_one(parts).trajectories
    assert [type(n.context) for n in trajectory.nodes].count(Cut) == 2
    assert len(trajectory.segments) == 3
    second = [n for n in trajectory.nodes if isinstance(n.context, Cut)][1]
    last = trajectory.nodes[trajectory.nodes.index(second) + 1]
    request = next(r for r in parts.engine.requests if r.priority[1:] == last.path)
    turn = parts.renderer.decode(request.token_ids[len(request.token_ids) - request.stop_context :])
    assert turn.startswith("<think>")
    assert last.calls[0].arguments == {"query": "Paris"}


def reasons(parts):
    return [event.fields for event in parts.events.events if event.kind.startswith("rewriter/")]


class Fails(Backtracks):
    async def rewrite(self, trajectory, tools):
        raise OSError("no such helper")


@pytest.mark.parametrize(
    ("rewriter", "options", "reason"),
    [
        (Backtracks(1, node="7"), {}, "node '7' is not on the path"),
        (Backtracks(1, node="0.0", tokens=1), {}, "node '0.0' is not on the path"),
        (Backtracks(1, tokens=0), {}, "0 tokens of node '0', which has"),
        (Backtracks(1, tokens=10**6), {}, "1000000 tokens of node '0', which has"),
        (Backtracks(1, text="word " * 1000), {}, "there is room for"),
        (Backtracks(1, text=""), {"limits": {"temperature": 0.0}}, "at temperature 0 the same tokens"),
        (Fails(1), {}, "OSError: no such helper"),
    ],
)
def test_what_cannot_be_gone_on_from_is_an_event_and_the_trajectory_goes_on(
    tokenizer_folder, rewriter, options, reason
):
    parts = backtracking(tokenizer_folder, rewriter, **options)
    (trajectory,) = grow_one(parts).trajectories
    assert trajectory.stop is StopReason.ANSWERED
    assert len(trajectory.segments) == 1
    assert all(fields["asked"] == "nothing usable" for fields in reasons(parts))
    assert reason in reasons(parts)[0]["reason"]


class GoesOnAfterTheTurn(Backtracks):
    """Puts its text where the result of the turn's call would stand; its numbers are numpy's."""

    async def rewrite(self, trajectory, tools):
        answer = await super().rewrite(trajectory, tools)
        if answer is None:
            return None
        turn = trajectory.policy_nodes[-1]
        return ContinueFrom(Cut(turn.id, np.int64(len(turn.token_ids))), answer.text)


def test_a_text_after_the_whole_last_turn_stands_where_its_result_would(tokenizer_folder, tmp_path):
    tree = grow_one(backtracking(tokenizer_folder, GoesOnAfterTheTurn(1)))
    (trajectory,) = tree.trajectories
    prompt, turn, note, last = trajectory.nodes
    assert (note.context, note.text, note.rewriter) == ("parent", " hm", "backtracks")
    assert len(trajectory.segments) == 1
    assert trajectory.segments[0].token_ids == (
        prompt.token_ids + turn.token_ids + note.token_ids + last.token_ids
    )
    assert note.results == (trajectory.exchanges[0][1],)
    assert last.turn == Final("\\boxed{ 42 }")
    assert_traced(tree, tmp_path)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("leaves", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_rewriter_that_would_end_the_process_is_an_event(tokenizer_folder, leaves, is_async):
    def ends(trajectory):
        raise leaves("now")

    async def ends_later(trajectory):
        ends(trajectory)

    rewriter = FunctionRewriter(ends_later if is_async else ends, "ends")
    parts = backtracking(tokenizer_folder, rewriter)
    (trajectory,) = grow_one(parts).trajectories
    assert trajectory.stop is StopReason.ANSWERED
    assert {fields["reason"] for fields in reasons(parts)} == {f"{leaves.__name__}: now"}


def test_a_function_that_hangs_is_left_behind_with_its_trajectory(tokenizer_folder):
    released = threading.Event()
    rewriter = FunctionRewriter(lambda trajectory: released.wait(60), "hangs")
    parts = agent(
        tokenizer_folder, FLAT, careless, n=2, rewriters=(rewriter,), limits={"trajectory_seconds": 1.0}
    )
    try:
        (tree,), _ = grow(parts, left_tasks=0)
    finally:
        released.set()
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.DEADLINE}


def test_a_cut_inside_a_character_is_refused(tokenizer_folder):
    def accents(context, seed):
        text = ANSWERS if "</result>" in context else SEARCHES.replace("now", "\N{SNOWMAN}")
        return ScriptedTurn(text, (1.0,))

    tokenizer = tokenizer_of(tokenizer_folder)
    before = len(tokenizer.encode(SEARCHES.split("now")[0]))
    refusals = []
    for tokens in range(before - 1, before + 4):
        parts = backtracking(tokenizer_folder, Backtracks(1, tokens=tokens), play=accents)
        grow_one(parts)
        refusals += [fields["reason"] for fields in reasons(parts) if "reason" in fields]
    assert refusals
    assert all("a character is cut" in reason for reason in refusals)


def test_a_rewriter_is_asked_within_its_budget_and_the_next_one_after_it(tokenizer_folder):
    first, second = Backtracks(1, budget=1), Repairs()
    tree = grow_one(agent(tokenizer_folder, FLAT, searches, n=1, rewriters=(first, second)))
    (trajectory,) = tree.trajectories
    assert [type(n.context) for n in trajectory.nodes].count(Cut) == 1
    assert len(second.requests) == len(trajectory.exchanges)


@pytest.mark.parametrize("branch_at", BRANCH_AT)
@pytest.mark.parametrize("rewriters", [(FoldsMemory(2),), (Backtracks(2), FoldsMemory(3))])
def test_latencies_do_not_change_the_tree(tokenizer_folder, rewriters, branch_at):
    parts = agent(tokenizer_folder, ALWAYS, rewriters=rewriters, branch_at=branch_at)
    first = grow_one(parts)
    assert {type(n.context) for n in first.nodes} == ({str, Cut} if len(rewriters) > 1 else {str})
    assert all(grow_one(with_latencies(parts, seed)) == first for seed in range(1, 6))
