"""Conversations of other trainers as trees: the turns that count as decisions, and what is left out by its reason."""

import gzip
import json

import pytest

from ramify.core.errors import DataError
from ramify.study.conversations import is_foreign, read_conversations
from ramify.study.replayed_world import recorded_results

QUESTION = {"role": "user", "content": "which door ?"}
ANSWER = {"role": "assistant", "content": "3"}


def call(arguments, **more):
    function = {"name": "look", "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": function, **more}],
    }


RESULT = {"role": "tool", "tool_call_id": "c", "content": "a car"}


def node(message, parent, *, sampled):
    return {"message": message, "sampled": sampled, **({} if parent is None else {"parent": parent})}


@pytest.fixture
def read(tmp_path):
    def run(*records):
        path = tmp_path / "runs.jsonl"
        path.write_text("".join(json.dumps({"reward": 1.0, **record}) + "\n" for record in records))
        return read_conversations(path)

    return run


def turns(run):
    """The prompt of the first problem, and its policy's turns."""
    tree = run.trees[0].tree
    prompt = [message.text for message in tree.problem.messages]
    return prompt, [each.text for trajectory in tree.trajectories for each in trajectory.policy_nodes]


def test_a_prompt_beside_the_messages_is_where_they_begin(read):
    for prompt in ("which door ?", [QUESTION]):
        assert turns(read({"prompt": prompt, "messages": [QUESTION, ANSWER]})) == (["which door ?"], ["3"])
        assert turns(read({"prompt": prompt, "messages": [ANSWER]})) == (["which door ?"], ["3"])


def test_an_empty_completion_is_an_empty_turn(read):
    assert turns(read({"prompt": "which door ?", "completion": ""})) == (["which door ?"], [""])
    # Beside messages it is an unused column.
    assert turns(read({"messages": [QUESTION, ANSWER], "completion": ""})) == (["which door ?"], ["3"])


def test_turns_in_the_prompt_are_read_and_are_no_decisions(read):
    example = {"role": "assistant", "content": "1"}
    prompt = [QUESTION, example, QUESTION]
    by_columns = read(
        {"prompt": prompt, "completion": [ANSWER]}, {"prompt": prompt, "messages": [*prompt, ANSWER]}
    )
    greeted = [{"role": "system", "content": "Open a door."}, example, QUESTION, ANSWER]
    nodes = [node(each, at - 1 if at else None, sampled=at == 3) for at, each in enumerate(greeted)]
    by_nodes = read({"nodes": nodes, "rewards": {"right": {"score": 1}}})
    assert turns(by_columns) == (["which door ?", "1", "which door ?"], ["3", "3"])
    assert turns(by_nodes) == (["Open a door.", "1", "which door ?"], ["3"])
    assert [each.role for each in by_nodes.trees[0].tree.problem.messages] == ["system", "assistant", "user"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [QUESTION], "completion": [ANSWER]}, "it has both messages and a completion"),
        (
            {"prompt": [QUESTION, call("{}"), RESULT, QUESTION], "completion": [ANSWER]},
            "its prompt holds a call",
        ),
        (
            {"prompt": [QUESTION, ANSWER], "messages": [ANSWER]},
            "its prompt ends with a turn of the assistant",
        ),
        ({"messages": [ANSWER]}, "it has no prompt"),
        (
            {
                "nodes": [
                    node(QUESTION, None, sampled=False),
                    node(ANSWER, 0, sampled=True),
                    node(QUESTION, 1, sampled=False),
                    node(ANSWER, 2, sampled=False),
                    node(QUESTION, 3, sampled=False),
                    node(ANSWER, 4, sampled=True),
                ],
                "rewards": {"right": {"score": 1}},
            },
            "a turn that the model did not write follows one that it wrote",
        ),
        (
            {
                "nodes": [node(QUESTION, None, sampled=False), node(ANSWER, 0, sampled=True)],
                "rewards": {"right": {"score": 0}},
                "ok": False,
            },
            "its rollout failed",
        ),
        (
            {
                "messages": [
                    QUESTION,
                    {"role": "assistant", "content": None, "function_call": {"name": "look"}},
                ]
            },
            "a message has function_call, which is not read",
        ),
        (
            {"messages": [QUESTION, {"role": "assistant", "content": None, "refusal": "No."}]},
            "a message has refusal, which is not read",
        ),
        ({"messages": [QUESTION, call("ls", type="custom"), RESULT, ANSWER]}, "a call cannot be read"),
        (
            {"messages": [QUESTION, {"role": "assistant", "content": "look: 3"}, RESULT, ANSWER]},
            "a turn has another number of results than of calls",
        ),
        ({"messages": [QUESTION, ANSWER], "reward": None}, "it has no reward (reward or score)"),
    ],
)
def test_turns_that_the_model_did_not_write_or_that_are_not_read_leave_a_conversation_out(
    read, record, reason
):
    run = read({"messages": [QUESTION, ANSWER]}, record)
    assert run.left_out == {reason: 1}
    assert turns(run) == (["which door ?"], ["3"])


def test_calls_whose_arguments_are_no_object_are_turns_with_the_results_that_were_recorded(read):
    """Conversations in which the model wrote a broken call end badly more often than others: without them effects are biased."""
    broken = ['{"door": ', '{"gate": ', "[1]", "[" * 100_000]
    run = read(*({"messages": [QUESTION, call(text), RESULT, ANSWER]} for text in broken))
    assert run.left_out == {}
    calls = [trajectory.policy_nodes[0].calls[0] for trajectory in run.trees[0].tree.trajectories]
    assert [dict(each.arguments) for each in calls] == [{}] * 4
    # Known by what was written, not by what is wrong with it.
    assert len({each.malformed for each in calls}) == 4


def test_long_broken_calls_that_differ_at_their_end_are_two(read):
    def tried(end):
        text = '{"door": "' + "x" * 1000 + end
        return {"messages": [QUESTION, call(text), {**RESULT, "content": end}, ANSWER]}

    tree = read(tried("one"), tried("two")).trees[0].tree
    assert {each.text for each in recorded_results(tree).values()} == {"one", "two"}
    assert max(len(node.calls[0].malformed) for node in tree.nodes if node.calls) < 500


def test_problems_whose_id_is_null_are_not_one(tmp_path):
    path = tmp_path / "runs.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": text}, ANSWER], "id": own, "reward": 1.0}
        for text, own in (("a ?", None), ("b ?", None), ("c ?", 0))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second, third = (each.tree.problem.id for each in read_conversations(path, ["id"]).trees)
    assert first != second
    assert third == "0"


def test_conversations_may_have_a_column_schema(tmp_path):
    path = tmp_path / "runs.jsonl"
    row = {"messages": [QUESTION, ANSWER], "schema": "CREATE TABLE doors", "reward": 1.0}
    path.write_text(json.dumps(row) + "\n")
    assert is_foreign(path)


def test_an_answer_that_is_no_text_is_its_json(read):
    answers = [
        read({"messages": [QUESTION, ANSWER], "answer": answer})
        for answer in ({"target": "3"}, 3, [3, "3"], True)
    ]
    assert [run.trees[0].tree.problem.answer for run in answers] == [
        ('{"target": "3"}',),
        ("3",),
        ("3", "3"),
        ("true",),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"input": "?", "output": "3", "score": 1}\n',
            "expected a tree .* the row has input, output, score",
        ),
        (gzip.compress(b"{}"), "a gzip file; unpack it"),
        ('{"messages": []}'.encode("utf-16"), "UTF-16"),
        (b'[{"messages": []}]', "row 1: expected a JSON object, found list. Correct or remove the row"),
        (b'{"messages": [', "row 1: the line is cut off .* Correct or remove the row"),
    ],
    ids=["other-columns", "gzip", "utf-16", "array", "cut"],
)
def test_a_file_that_holds_no_conversations_says_what_it_holds(tmp_path, content, message):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        is_foreign(path)
