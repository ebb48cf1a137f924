"""A judge of turns: the replies that count, and what it is shown of a trajectory."""

import hashlib
import json
from dataclasses import replace

import pytest

from ramify.core.messages import Calls, Final, Message, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.records import Reward
from ramify.core.tree import Cut, Node, Source, StopReason, TreeKey, make_tree
from ramify.obs.trace import TracedTree
from ramify.study.decisions import decisions_of
from ramify.study.turn_judge import PROMPT, TurnCase

MARK = "0123456789abcdef"


def policy(path, text, calls=(), stop=None):
    turn = Final(text) if stop else Calls(calls) if calls else None
    name = ".".join(map(str, path))
    parent = ".".join(map(str, path[:-1]))
    return Node(name, path, parent, Source.POLICY, (1,), text, (0.0,), turn=turn, stop=stop)


def reply(path, text, *results):
    name, parent = (".".join(map(str, each)) for each in (path, path[:-1]))
    return Node(name, path, parent, Source.TOOL, (1,), text, results=results)


def look(number):
    return (ToolCall(f"c{number}", "look", {"door": number}),)


def result_of(number, text):
    return ToolResult(f"c{number}", ToolStatus.OK, text, reward=0.625)


@pytest.fixture
def cases():
    """A first turn whose beginning two branches share, a second turn with a long reply, and the answer."""
    problem = Problem(
        "p", (Message.of("system", "Be short."), Message.of("user", "which door?")), ("the gold",)
    )
    nodes = [
        Node("", (), None, Source.PROMPT, (1,), "<template>which door?"),
        policy((0,), "I look "),
        policy((0, 0), "behind one.", look(1)),
        reply((0, 0, 0), "<result>a goat</result>", result_of(1, "a goat")),
        policy((0, 0, 0, 0), "And two.", look(2)),
        reply((0, 0, 0, 0, 0), "<result>long</result>", result_of(2, "b" * 6000 + "c" * 6000)),
        policy((0, 0, 0, 0, 0, 0), "the last words", stop=StopReason.ANSWERED),
        policy((0, 1), "nowhere.", stop=StopReason.ANSWERED),
    ]  # fmt: skip
    tree = make_tree(problem, TreeKey(0, 0), nodes)
    traced = TracedTree(tree, (Reward(0.375, {}), Reward(0.875, {})))
    return {each.node: TurnCase(tree, each) for each in decisions_of(traced, 0, 0)}


def test_the_judge_is_shown_the_work_up_to_the_reply_and_nothing_later(cases):
    first = {"text": "I look behind one.", "calls": [{"name": "look", "arguments": '{"door": 1}'}]}
    prompt = [{"role": "system", "text": "Be short."}, {"role": "user", "text": "which door?"}]
    assert cases["0.0"].shown() == {"prompt": prompt, "before": [], "turn": first, "reply": ["a goat"]}
    second = cases["0.0.0.0"].shown()
    assert second["before"] == [{"turn": first}, {"reply": ["a goat"]}]
    assert second["turn"]["text"] == "And two."
    assert len(second["reply"][0]) < 10_100
    assert "characters are left out here" in second["reply"][0]
    # Other branches are not part of the trajectory, and an end has no reply.
    last = cases["0.0.0.0.0.0"].shown()
    assert (last["turn"], last["reply"], len(last["before"])) == (
        {"text": "the last words", "calls": []},
        None,
        4,
    )
    assert cases["0.1"].shown()["turn"]["text"] == "I look nowhere."


def chain(*nodes):
    """The case of the first turn of a trajectory, whose last turn is an answer."""
    root = Node("", (), None, Source.PROMPT, (1,), "which door?")
    tree = make_tree(Problem("p", (Message.of("user", "which door?"),), ()), TreeKey(0, 0), [root, *nodes])
    return {
        each.node: TurnCase(tree, each) for each in decisions_of(TracedTree(tree, (Reward(1.0, {}),)), 0, 0)
    }


def test_where_a_reply_was_rewritten_the_judge_reads_what_the_policy_read():
    replaced = replace(reply((0, 0), "in short: a goat", result_of(1, "a long page")), rewriter="refiner")
    cases = chain(
        policy((0,), "I look.", look(1)), replaced, policy((0, 0, 0), "a goat", stop=StopReason.ANSWERED)
    )
    read = {"reply": ["in short: a goat"], "rewritten_by": ["refiner"]}
    assert cases["0"].shown() | read == cases["0"].shown()
    assert cases["0.0.0"].shown()["before"][-1] == read


def backtracked(context, text):
    """A trajectory whose second result a rewriter replaced by `text` in another context, and what
    the judge is shown of the last two turns."""
    nodes = [
        Node("", (), None, Source.PROMPT, (0,), "which door?"),
        replace(policy((0,), "I look.", look(1)), token_ids=(1, 2), behavior_logprobs=(0.0, 0.0)),
        reply((0, 0), "<result>a goat</result>", result_of(1, "a goat")),
        replace(
            policy((0, 0, 0), "I wager on two.", look(2)), token_ids=(3, 4, 5), behavior_logprobs=(0.0,) * 3
        ),
        replace(
            reply((0, 0, 0, 0), text, result_of(2, "what?")), rewriter="backtracer", context=context
        ),
        policy((0, 0, 0, 0, 0), "three.", stop=StopReason.ANSWERED),
    ]  # fmt: skip
    tree = make_tree(Problem("p", (Message.of("user", "which door?"),), ()), TreeKey(0, 0), nodes)
    words = {1: "I ", 2: "look.", 3: "I ", 4: "wager ", 5: "on two."}
    decisions = decisions_of(TracedTree(tree, (Reward(1.0, {}),)), 0, 0)
    cases = [TurnCase(tree, each, lambda ids: "".join(words[token] for token in ids)) for each in decisions]
    return cases[1].shown(), cases[2].shown()


@pytest.mark.parametrize(
    ("context", "changes"),
    [
        (Cut("0.0.0", 2), {"taken_back": 1, "kept": "I wager "}),
        (Cut("0", 1), {"taken_back": 3, "kept": "I "}),
        # The turn is written anew, after the result that stands before it.
        (Cut("0.0", 1), {"taken_back": 1}),
        ("fresh", {"taken_back": 3}),
        ("parent", {}),
    ],
)
def test_what_a_cut_took_away_and_the_head_that_it_left_are_shown(context, changes):
    """The next turn goes on in the middle of one that the judge would otherwise think was over."""
    cut, end = backtracked(context, "no, on ")
    replaced = {"reply": ["no, on "], "rewritten_by": ["backtracer"], **changes}
    assert {name: cut[name] for name in cut if name not in ("prompt", "before", "turn")} == replaced
    assert end["before"][-1] == replaced
    assert (end["turn"]["text"], end["reply"], len(end["before"])) == ("three.", None, 4)


def test_a_call_that_could_not_be_read_says_so():
    broken = (ToolCall("c1", "look", {}, malformed="no JSON"),)
    cases = chain(
        policy((0,), "I look.", broken),
        reply((0, 0), "", result_of(1, "what?")),
        policy((0, 0, 0), "2", stop=StopReason.ANSWERED),
    )
    assert cases["0"].shown()["turn"]["calls"] == [
        {"name": "look", "arguments": "{}", "malformed": "no JSON"}
    ]


def test_of_a_long_trajectory_the_oldest_steps_are_left_out_and_counted():
    nodes, path = [], (0,)
    for _ in range(30):
        nodes += [policy(path, "I look.", look(1)), reply((*path, 0), "", result_of(1, "x" * 9000))]
        path = (*path, 0, 0)
    nodes.append(policy(path, "a goat", stop=StopReason.ANSWERED))
    before = chain(*nodes)[".".join(map(str, path))].shown()["before"]
    assert before[0] == {"left_out": f"{60 - (len(before) - 1)} earlier steps"}
    assert 85_000 < len(json.dumps(before)) < 100_100
    assert before[-1] == {"reply": ["x" * 9000]}


def test_no_reward_no_accepted_answer_and_no_later_part_reach_the_judge(cases):
    for name, case in cases.items():
        texts = "\n".join([case.key, *(message.text for message in case.messages(MARK))])
        assert not any(secret in texts for secret in ("the gold", "0.375", "0.625", "0.875")), name
        assert ("the last words" in texts) == (name == "0.0.0.0.0.0")
    assert len({case.key for case in cases.values()}) == len(cases) == 4


def test_the_data_are_json_between_two_marks_in_a_message_of_their_own(cases):
    instructions, data = cases["0.0"].messages(MARK)
    first, *body, last = data.text.split("\n")
    assert first == last == MARK
    assert json.loads("\n".join(body)) == cases["0.0"].shown()
    assert instructions.text.endswith(f"{MARK} NUMBER")


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        (f"{MARK} 3", 3), (f"{MARK} -10", -10), (f"{MARK} +10", 10), (f"{MARK} 0", 0), (f"It harmed.\n{MARK} \u22124\n\n", -4),
        (f"**{MARK} -7**", -7), (f"`{MARK} 2`.", 2), (f"{MARK}: -1", -1), (f"<think>{MARK} 9</think>{MARK} 1", 1),
        (f"I end with {MARK} NUMBER.\n{MARK} 5", 5),
    ],
)  # fmt: skip
def test_a_verdict_is_a_whole_number_after_the_mark_in_the_last_line(cases, reply, number):
    assert cases["0.0"].verdict(reply, MARK) == number


@pytest.mark.parametrize(
    "reply",
    [
        "", "7", "It helped: 7", MARK, f"{MARK} NUMBER", f"{MARK} 11", f"{MARK} -11", f"{MARK} 0.5", f"{MARK} 1/2", f"{MARK} 3 to 5",
        f"{MARK} 7/10", f"{MARK}7", f"{MARK} - 7", f"{MARK} --7", f"{MARK} seven", f"{MARK} 3\nor so", f"{MARK} 3\n{MARK} -3",
        f"{MARK} \u20137", f"{MARK} \u20147", f"{MARK} .5", f"{MARK} 5%", f"{MARK} <3", f"{MARK} {'9' * 5000}", "fedcba9876543210 3", f"<think>{MARK} 3</think>",
    ],
)  # fmt: skip
def test_anything_else_is_no_verdict_on_a_turn(cases, reply):
    assert cases["0.0"].verdict(reply, MARK) is None


def test_the_wording_of_the_turn_judge_belongs_to_its_version(cases):
    """Another wording is another version: count that of PROMPT up, then put the new checksum here."""
    instructions, _ = cases["0.0"].messages("M")
    assert (PROMPT.version, hashlib.sha256(instructions.text.encode()).hexdigest()[:16]) == (
        2,
        "a4bd2102041e0e86",
    )
