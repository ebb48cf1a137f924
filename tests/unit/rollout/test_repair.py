"""The backtracer and the refiner: where they go on, what they keep, and how often they are asked."""

from dataclasses import replace

import pytest

from ramify.core.messages import Message, ToolStatus
from ramify.core.tree import Cut, Source, StopReason
from ramify.engines.scripted import ScriptedTurn
from ramify.rollout.repair import Backtracer, DebuggedEnvironment, Refiner
from repair_agents import ScriptedHelper, SeesAll, helper_of, tools
from scripted_agents import (
    ALWAYS,
    FLAT,
    RecordingEngine,
    SlowTool,
    agent,
    grow_one,
    problem,
    with_engine,
    with_latencies,
)

ANSWER = "<think> done</think><answer> \\boxed{ 42 } </answer>"
FAILS = "<think> so I add. I print it</think><python> print( </python>"


def plays(*turns):
    """The next turn by the number of results in the context, and for each context another thought by its seed."""

    def play(context, seed):
        text = turns[min(context.count("</result>"), len(turns) - 1)]
        return ScriptedTurn(text.replace("SEED", f"{seed % 997}"), ends="<answer>" in text)

    return play


def backtracking(folder, play, calls=1, temperature=1.0, rule=FLAT, **options):
    parts = agent(folder, rule, play, tools=tools(), limits={"temperature": temperature}, **options)
    return replace(parts, rewriters=(Backtracer(parts.renderer, temperature, calls),))


def test_a_rollback_keeps_the_chat_header_and_changes_the_next_sample(tokenizer_folder):
    parts = backtracking(
        tokenizer_folder, plays("<think> I try SEED</think><python> print( SEED </python>"), n=1
    )
    parts = with_engine(parts, RecordingEngine)
    (trajectory,) = grow_one(parts).trajectories
    prompt, first, gone, *_ = trajectory.nodes
    assert (gone.rewriter, gone.source, gone.context) == (
        "backtracer",
        Source.TOOL,
        Cut(first.id, gone.context.tokens),
    )
    first_request, second_request, *_ = parts.engine.requests
    assert second_request.token_ids[: len(prompt.token_ids)] == prompt.token_ids == first_request.token_ids
    context = parts.renderer.decode(second_request.token_ids[len(prompt.token_ids) :])
    assert context == "<think>"
    assert second_request.seed != first_request.seed
    second = trajectory.policy_nodes[1]
    assert context + gone.text + second.text != first.text
    assert gone.results[0].status is ToolStatus.ERROR


@pytest.mark.parametrize(
    ("turn", "context"),
    [
        (FAILS, "<think> so I add."),
        ("<think> one\n two\n three </think>\n<python> print( </python>", "<think> one\n two\n"),
        ("<think> only</think><python> print( </python>", "<think>"),
        ("<python> print( </python>", ""),
        ("<think> a</think> I run it: <python> print( </python>", "<think> a</think> I run it: "),
        ("opened before </think><python> print( </python>", ""),
    ],
)
def test_it_goes_on_from_the_last_line_or_sentence_before_the_call(tokenizer_folder, turn, context):
    (trajectory,) = grow_one(backtracking(tokenizer_folder, plays(turn), n=1)).trajectories
    gone = next(node for node in trajectory.nodes if node.rewriter)
    segment = trajectory.contexts[trajectory.nodes.index(gone)]
    prompt = trajectory.nodes[0]
    decode = agent(tokenizer_folder, FLAT).renderer.decode
    assert decode(segment.token_ids[len(prompt.token_ids) :]) == context
    assert segment.token_ids[: len(prompt.token_ids)] == prompt.token_ids


def test_its_budget_belongs_to_the_trajectory_and_branches_inherit_what_was_spent(tokenizer_folder):
    for calls in (1, 2):
        parts = backtracking(tokenizer_folder, plays(FAILS), calls=calls, rule=ALWAYS, max_calls=6)
        tree = grow_one(parts)
        for trajectory in tree.trajectories:
            assert sum(node.rewriter == "backtracer" for node in trajectory.nodes) <= calls
        most = max(sum(node.rewriter != "" for node in t.nodes) for t in tree.trajectories)
        assert most == calls
        assert all(grow_one(with_latencies(parts, seed)) == tree for seed in range(1, 6))


@pytest.mark.parametrize("status", ToolStatus)
def test_it_acts_after_each_kind_of_failure(tokenizer_folder, status):
    class Fails(SlowTool):
        async def open(self, problem):
            session = await super().open(problem)
            inner = session.call

            async def call(call):
                return replace(await inner(call), status=status)

            session.call = call
            return session

    parts = agent(tokenizer_folder, FLAT, plays(FAILS), tools={"python": Fails("python", "code")}, n=1)
    (trajectory,) = grow_one(replace(parts, rewriters=(Backtracer(parts.renderer, 1.0, 1),))).trajectories
    acted = [node.rewriter for node in trajectory.nodes].count("backtracer")
    assert acted == (status not in (ToolStatus.OK, ToolStatus.EMPTY, ToolStatus.OVER_LIMIT))


def test_it_goes_back_twice_to_where_the_turn_begins(tokenizer_folder):
    """Nothing stands there, which nothing can go on from; the second time it goes back to the prompt all the same."""
    parts = backtracking(tokenizer_folder, plays("<python> print( </python>"), calls=2, n=1)
    (trajectory,) = grow_one(parts).trajectories
    gone = [node for node in trajectory.nodes if node.rewriter]
    assert [node.context for node in gone] == [Cut("", len(trajectory.nodes[0].token_ids))] * 2


@pytest.mark.parametrize(
    "turn", [FAILS, "<python> print( </python>", "<think> a</think> so: <python> print( </python>"]
)
def test_at_temperature_0_a_note_of_the_failure_changes_the_context(tokenizer_folder, turn):
    def play(context, seed):
        if "failed" not in context:
            return ScriptedTurn(turn)
        return ScriptedTurn(ANSWER.removeprefix("<think>") if turn == FAILS else ANSWER, ends=True)

    parts = with_engine(backtracking(tokenizer_folder, play, temperature=0.0, n=1), SeesAll)
    (trajectory,) = grow_one(parts).trajectories
    assert trajectory.stop is StopReason.ANSWERED
    gone = next(node for node in trajectory.nodes if node.rewriter)
    assert "NameError" in gone.text
    assert "<answer>" not in gone.text
    assert trajectory.final_answer == "\\boxed{ 42 }"


def refining(folder, play, model, at_tokens, budget=1, seconds=60.0, rule=FLAT, **options):
    parts = agent(folder, rule, play, tools=tools(), max_calls=8, **options)
    return replace(parts, rewriters=(Refiner(parts.renderer, helper_of(model, seconds), at_tokens, budget),))


LONG = "<think> " + "find the number and " * 6 + "SEED</think><search> Paris SEED </search>"


def test_the_refiner_keeps_the_prompt(tokenizer_folder):
    model = ScriptedHelper(["12 plus 30 is 42. </think><answer> 7 </answer>"])
    parts = with_engine(
        refining(tokenizer_folder, plays(LONG, LONG, ANSWER), model, 60, n=1), RecordingEngine
    )
    (trajectory,) = grow_one(parts).trajectories
    prompt = trajectory.nodes[0]
    refined = next(node for node in trajectory.nodes if node.rewriter == "refiner")
    assert refined.context == Cut("", len(prompt.token_ids))
    after = next(
        r
        for r in parts.engine.requests
        if r.token_ids[: len(prompt.token_ids)] == prompt.token_ids
        and refined.token_ids == r.token_ids[len(prompt.token_ids) :]
    )
    assert after.token_ids == prompt.token_ids + refined.token_ids
    assert refined.text.startswith("<think> 12 plus 30 is 42.")
    assert "<answer>" not in refined.text
    assert refined.text.count("</think>") == 1
    (request,) = model.requests
    assert "what is 12 plus 30 ?" in request[-1].text
    assert "number" in request[-1].text
    assert trajectory.stop is StopReason.ANSWERED


def test_the_refiner_asks_whenever_the_context_has_become_long(tokenizer_folder):
    model = ScriptedHelper(["short"])
    parts = refining(tokenizer_folder, plays(LONG), model, 60, budget=10, n=1, max_tokens=1500)
    (trajectory,) = grow_one(parts).trajectories
    refined = [node for node in trajectory.nodes if node.rewriter]
    assert len(refined) == len(model.requests) > 1
    once = ScriptedHelper(["short"])
    grow_one(refining(tokenizer_folder, plays(LONG), once, 60, budget=1, n=1, max_tokens=1500))
    assert len(once.requests) == 1


def seen_sizes(folder, play, **options):
    """Tokens after the prompt at each result, of a trajectory that no refiner shortens."""
    (trajectory,) = grow_one(
        agent(folder, FLAT, play, tools=tools(), n=1, max_calls=8, **options)
    ).trajectories
    return [
        sum(size for _, size in context.parts[1:])
        for node, context in zip(trajectory.nodes, trajectory.contexts, strict=True)
        if node.source is Source.TOOL
    ]


def test_it_asks_from_so_many_tokens_on(tokenizer_folder):
    size, _ = seen_sizes(tokenizer_folder, plays(LONG, LONG, ANSWER))
    for at_tokens, first in ((size, True), (size + 1, False)):
        model = ScriptedHelper(["short"])
        parts = refining(tokenizer_folder, plays(LONG, LONG, ANSWER), model, at_tokens, n=1)
        (trajectory,) = grow_one(parts).trajectories
        results = [node for node in trajectory.nodes if node.source is Source.TOOL]
        assert (results[0].rewriter == "refiner") is first


def test_a_text_of_as_many_tokens_is_no_shorter(tokenizer_folder):
    size, _ = seen_sizes(tokenizer_folder, plays(LONG, LONG, ANSWER))
    parts = agent(tokenizer_folder, FLAT)
    texts = ["a " * count for count in range(1, size)]
    exact = next(
        text
        for text in texts
        if len(parts.renderer.insert(f"<think> {text.strip()}</think>", parts.tools)) == size
    )
    for text, taken in ((exact, False), (exact[2:], True)):
        parts = refining(tokenizer_folder, plays(LONG, LONG, ANSWER), ScriptedHelper([text]), size, n=1)
        (trajectory,) = grow_one(parts).trajectories
        assert (trajectory.nodes[2].rewriter == "refiner") is taken


def test_it_acts_on_a_context_that_was_long_when_the_backtracer_acted(tokenizer_folder):
    """The turn that made the context long failed; the next result finds it long still."""
    fails = "<think> " + "find the number and " * 6 + "I add. So</think><python> print( </python>"

    def play(context, seed):
        if "short" in context:
            return ScriptedTurn(ANSWER, ends=True)
        return ScriptedTurn("</think><search> Paris </search>" if "number" in context else fails)

    parts = with_engine(refining(tokenizer_folder, play, ScriptedHelper(["short"]), 20, n=1), SeesAll)
    back = Backtracer(parts.renderer, 1.0, 1)
    (trajectory,) = grow_one(replace(parts, rewriters=(back, *parts.rewriters))).trajectories
    assert [node.rewriter for node in trajectory.nodes if node.rewriter] == ["backtracer", "refiner"]
    assert trajectory.stop is StopReason.ANSWERED


@pytest.mark.parametrize("budget", [1, 2])
def test_a_failed_ask_spends_an_attempt(tokenizer_folder, budget):
    model = ScriptedHelper(["  "])
    parts = refining(tokenizer_folder, plays(LONG, LONG, LONG, ANSWER), model, 40, budget=budget, n=1)
    (trajectory,) = grow_one(parts).trajectories
    assert trajectory.stop is StopReason.ANSWERED
    assert len(model.requests) == budget


def test_branches_inherit_a_failed_ask(tokenizer_folder):
    model = ScriptedHelper(["  "])
    play = plays(LONG, LONG, LONG, ANSWER)
    tree = grow_one(refining(tokenizer_folder, play, model, 40, rule=ALWAYS, n=6, max_tokens=800))
    assert len(tree.trajectories) > len(tree.children[""])
    assert len(model.requests) == len(tree.children[""])


@pytest.mark.parametrize(
    ("answer", "seconds", "reason"),
    [
        ("short", 1000.0, "UnhelpfulError: timeout"),
        ("  ", 0.0, "UnhelpfulError: blank"),
        ("the same words again " * 70, 0.0, "UnhelpfulError: no shorter"),
        ("the same words again " * 90, 0.0, "UnhelpfulError: too long"),
    ],
)
def test_a_helper_that_does_not_help_is_an_event_and_is_not_asked_again(
    tokenizer_folder, answer, seconds, reason
):
    model = ScriptedHelper([answer], seconds)
    parts = refining(tokenizer_folder, plays(LONG, LONG, LONG, ANSWER), model, 60, n=1)
    (trajectory,) = grow_one(parts).trajectories
    assert trajectory.stop is StopReason.ANSWERED
    assert len(trajectory.segments) == 1
    assert len(model.requests) == 1
    assert [e.fields["reason"] for e in parts.events.events if e.kind == "rewriter/refiner"] == [reason]


def test_debugger_and_backtracer_together_the_second_acts_where_the_first_did_not_help(tokenizer_folder):
    model = ScriptedHelper(["prose, no program"])
    parts = backtracking(tokenizer_folder, plays(FAILS, FAILS, ANSWER), n=1)

    class DebuggedTools(DebuggedEnvironment):
        """`grow_one` looks into the tools of a set."""

        members = parts.environment.members

    parts = replace(parts, environment=DebuggedTools(parts.environment, helper_of(model), 1))
    (trajectory,) = grow_one(parts).trajectories
    gone = next(node for node in trajectory.nodes if node.rewriter)
    assert gone.results[0].info["debugger"] == "no program"
    assert len(model.requests) == 1


def test_messages_of_the_user_stand_in_what_the_refiner_is_told(tokenizer_folder):
    """The question is the last message, whoever wrote the ones before."""
    model = ScriptedHelper(["short"])
    parts = refining(tokenizer_folder, plays(LONG, LONG, ANSWER), model, 60, n=1)
    question = replace(problem(), messages=(Message.of("system", "be brief"), Message.of("user", "which ?")))
    grow_one(parts, problems=[question])
    assert '"question": "which ?"' in model.requests[0][-1].text
