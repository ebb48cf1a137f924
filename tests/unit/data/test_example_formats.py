"""Each format is read into one form, and what cannot be read is told in words that rows share."""

import json
import re
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings

from ramify.chat.arguments import expected_arguments
from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.core.errors import RowError
from ramify.core.messages import Message, ToolResult, ToolStatus
from ramify.data.example_formats import COMPLETION, PAIR, read_row
from ramify.data.row_tools import read_tools, tool_specs
from random_schemas import ODD, SCHEMAS

USER, ANSWER = {"role": "user", "content": "2 + 2 ?"}, {"role": "assistant", "content": "4"}
HUMAN, GPT = {"from": "human", "value": "2 + 2 ?"}, {"from": "gpt", "value": "4"}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
ASKS = {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}
SEES = {"from": "observation", "value": "r"}
DAY = date(2025, 1, 1)
"""What a column of a parquet file may hold."""
ASKED = (Message.of("user", "2 + 2 ?"),)
FOUR = (AssistantTurn("4"),)


def assistant(text="", *calls, thought=""):
    return AssistantTurn(text, thought, tuple(AssistantCall(*call) for call in calls))


def result(text, call_id=""):
    return ToolResult(call_id, ToolStatus.OK, text)


@pytest.mark.parametrize(
    ("row", "name", "prompt", "spoken"),
    [
        ({"prompt": "2 + 2 ?", "completion": "4"}, "plain", ASKED, FOUR),
        ({"prompt": [USER], "completion": "4", "kind": 1}, "plain", ASKED, FOUR),
        ({"prompt": [USER], "completion": [ANSWER]}, "plain", ASKED, FOUR),
        ({"prompt": json.dumps([USER]), "completion": json.dumps([ANSWER])}, "plain", ASKED, FOUR),
        *(
            ({"prompt": "2 + 2 ?", "completion": text}, "plain", ASKED, (AssistantTurn(text),))
            for text in ('[{"a": 4}]', '[{"from": "Rome", "value": 4}]', '[{"role": "king", "content": "4"}]')
        ),
        ({"prompt": json.dumps([{"name": None, **USER}]), "completion": "4"}, "plain", ASKED, FOUR),
        # HuggingFaceH4/ultrachat_200k, and alpaca with the prompt as it was rendered.
        ({"prompt": "2 + 2 ?", "prompt_id": "f0", "messages": [USER, ANSWER]}, "OpenAI", ASKED, FOUR),
        ({"prompt": "Below is an instruction", "instruction": "2 + 2 ?", "output": "4"}, "alpaca", ASKED, FOUR),
        ({"prompt": "a", "conversations": [HUMAN, GPT]}, "ShareGPT", ASKED, FOUR),
        ({"messages": [USER, ANSWER]}, "OpenAI", ASKED, FOUR),
        (
            {"messages": [{"role": "system", "content": "s"}, USER, ANSWER, USER, ANSWER]},
            "OpenAI",
            (Message.of("system", "s"), *ASKED),
            (*FOUR, *ASKED, *FOUR),
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                          {"role": "tool", "tool_call_id": "c1", "content": "r"}, ANSWER]},
            "OpenAI",
            ASKED,
            (assistant("", ("c1", "search", '{"query": "x"}')), result("r", "c1"), *FOUR),
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "so "}], "reasoning_content": "hm",
                                 "tool_calls": [{"function": {"name": "f", "arguments": {"a": "\u00e9"}}}], "refusal": None},
                          {"role": "tool", "content": "r", "name": "f"}, ANSWER]},
            "OpenAI",
            ASKED,
            (assistant("so ", ("", "f", '{"a": "\u00e9"}'), thought="hm"), result("r"), *FOUR),
        ),
        ({"conversations": [HUMAN, GPT]}, "ShareGPT", ASKED, FOUR),
        ({"conversations": [HUMAN, GPT], "system": "s"}, "ShareGPT", (Message.of("system", "s"), *ASKED), FOUR),
        (
            {"conversations": [{"from": "system", "value": "t"}, HUMAN, GPT], "system": "s"},
            "ShareGPT",
            (Message.of("system", "t"), *ASKED),
            FOUR,
        ),
        (
            {"conversations": [HUMAN, {"from": "gpt", "value": "so "},
                               {"from": "function_call", "value": '{"name": "search", "arguments": {"query": "x"}}'},
                               {"from": "observation", "value": "r"}, GPT]},
            "ShareGPT",
            ASKED,
            (assistant("so ", ("", "search", '{"query": "x"}')), result("r"), *FOUR),
        ),
        (
            {"conversations": [HUMAN, {"from": "function_call", "value": '<think>hm</think>[{"name": "f", "arguments": {}}]'},
                               {"from": "tool", "value": "r"}, GPT]},
            "ShareGPT",
            ASKED,
            (assistant("", ("", "f", "{}"), thought="hm"), result("r"), *FOUR),
        ),
        ({"instruction": "2 + 2 ?", "output": "4", "input": ""}, "alpaca", ASKED, FOUR),
        (
            {"instruction": "Solve.", "input": "2 + 2 ?", "output": "4", "system": "s", "history": [["a", "b"]]},
            "alpaca",
            (Message.of("system", "s"), Message.of("user", "a")),
            (assistant("b"), Message.of("user", "Solve.\n2 + 2 ?"), *FOUR),
        ),
    ],
)  # fmt: skip
def test_demonstrations(row, name, prompt, spoken):
    reading = read_row(row, COMPLETION)
    assert (reading.format, reading.prompt, reading.sides) == (name, prompt, (spoken,))


FIVE = (AssistantTurn("5"),)
WRONG = {"role": "assistant", "content": "5"}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"prompt": [USER], "chosen": "4", "rejected": "5"}, "plain"),
        ({"prompt": [USER], "chosen": [ANSWER], "rejected": [WRONG]}, "plain"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, WRONG], "score_chosen": 1.0}, "OpenAI"),
        # HuggingFaceH4/ultrafeedback_binarized
        ({"prompt": "2 + 2 ?", "chosen": [USER, ANSWER], "rejected": [USER, WRONG]}, "OpenAI"),
        (
            {
                "prompt": "2 + 2 ?",
                "chosen": json.dumps([USER, ANSWER]),
                "rejected": json.dumps([USER, WRONG]),
            },
            "OpenAI",
        ),
        ({"prompt": "2 + 2 ?", "chosen": [HUMAN, GPT], "rejected": [HUMAN, {**GPT, "value": "5"}]}, "OpenAI"),
        ({"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "5"}}, "ShareGPT"),
        ({"instruction": "2 + 2 ?", "input": None, "chosen": "4", "rejected": "5"}, "alpaca"),
    ],
)
def test_pairs(row, name):
    reading = read_row(row, PAIR)
    assert (reading.format, reading.prompt, reading.sides) == (name, ASKED, (FOUR, FIVE))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "unknown format: expected prompt, messages, conversations or instruction: found text"),
        ({"prompt": "a", "response": "b"}, "no 'completion': found prompt, response; name what is meant, such as "
         'data.columns = {completion = "response"}'),
        ({"prompt": "a", "completion": 7}, "'completion' must be text or messages: it is int"),
        ({"prompt": "a", "completion": str([ANSWER])}, "'completion' cannot be read: broken JSON"),
        ({"messages": '[{"role": "user", "role": "user"}]'}, "key 'role' appears twice"),
        ({"prompt": "a", "completion": []}, "'completion' must be a list of messages"),
        ({"prompt": "a", "completion": "\ud800"}, "a lone surrogate, which is valid JSON but not text: 'completion'"),
        ({"prompt": "a", "completion": [USER]}, "a user or system message follows the prompt"),
        ({"messages": []}, "'messages' must be a list of messages"),
        ({"messages": "a"}, "'messages' must be a list of messages"),
        ({"messages": [USER, "a"]}, "a message is not an object: message 2"),
        ({"messages": [ANSWER]}, "no user message"),
        ({"messages": [USER, {"role": "critic", "content": "a"}]}, "an unknown role: message 2 of 'messages' has 'critic'"),
        ({"messages": [USER, {"role": ["a"], "content": "a"}]}, "an unknown role"),
        ({"messages": [USER, {"role": "assistant", "content": "", "function_call": {"name": "a"}}]}, "'function_call'"),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, "nothing is left to train on"),
        ({"prompt": "a", "completion": [{**ANSWER, "weight": 0}]}, "nothing is left to train on"),
        ({"messages": [USER, {**ANSWER, "weight": 0.5}]}, "the weight of a message must be 0 or 1: message 2"),
        ({"messages": [USER, {**ANSWER, "weight": 0, "loss": True}]}, "contradict each other"),
        ({"messages": [{**USER, "loss": True}, ANSWER]}, "only turns of the assistant are trained on: message 1"),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "image_url"}]}]}, "content that is not text"),
        ({"messages": [USER, {"role": "assistant"}]}, "expected text: 'content' of message 2 of 'messages' is missing or null"),
        ({"messages": [USER, ANSWER, ANSWER]}, "two assistant messages in a row"),
        ({"messages": [USER, {"role": "system", "content": "a"}, ANSWER]}, "follows the prompt"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "r"}, USER, ANSWER]},
         "a call or a result before the user's first message"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": ["a"]}]}, "a call cannot be read"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": {"a": 1}}]}, "a call cannot be read"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
         "the arguments of a call of message 2 of 'messages': it is a list"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}]}, "no name"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1, "a": 2}'}}]}]},
         "key 'a' appears twice"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "a call cannot be read"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c2", "content": ""}]},
         "a result follows no call: its tool_call_id"),
        ({"conversations": [GPT]}, "no user message"),
        ({"conversations": [HUMAN, {"from": "bing", "value": "a"}]}, "an unknown role: turn 2 of 'conversations' is from 'bing'"),
        ({"conversations": [HUMAN, {"from": "gpt"}]}, "expected text"),
        ({"conversations": [HUMAN, {**GPT, "loss": "no"}]}, "the weight of a message must be 0 or 1: turn 2"),
        ({"conversations": [HUMAN, {"from": "function_call", "value": "search(x)"}]}, "a call cannot be read: turn 2"),
        ({"conversations": [HUMAN, GPT], "tools": "{"}, "its tools cannot be read: broken JSON"),
        ({"conversations": [HUMAN, GPT], "tools": [{"description": "a"}]}, "its tools cannot be read: tool 1 has no name"),
        ({"conversations": [HUMAN, GPT], "tools": [{"name": "a", "parameters": {"properties": {"q": "str"}}}]}, "its tools"),
        ({"instruction": "", "input": " "[:0], "output": "4"}, "'instruction' and 'input' are blank"),
        ({"instruction": "a", "response": "b"}, 'such as data.columns = {output = "response"}'),
        ({"instruction": "a", "output": "b", "history": [["q"]]}, "'history' must be a list of"),
        ({"instruction": "a", "output": "b", "history": 5}, "'history' must be a list of"),
        ({"instruction": "a", "output": "b", "history": True}, "'history' must be a list of"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"on": DAY}}}]}]},
         "the arguments of a call of message 2 of 'messages': Object of type date is not JSON serializable"),
        ({"prompt": "a", "completion": "b", "tools": [{"name": "f", "parameters": {"properties": {"on": {"default": DAY}}}}]},
         "its tools cannot be read: Object of type date is not JSON serializable"),
        ({"prompt": "a", "completion": "b", "tools": [{"name": "f", "description": "\ud800"}]}, "a lone surrogate"),
        ({"prompt": "a", "completion": "b", "tools": '[{"name": "f", "description": "\\ud800"}]'}, "a lone surrogate"),
        ({"conversations": [HUMAN, GPT, {**ASKS, "value": f"<think>hm</think>{ASKS['value']}"}, SEES, GPT]}, "two assistant messages in a row"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(row, message):
    with pytest.raises(RowError) as caught:
        read_row(row, COMPLETION)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [USER, ANSWER]}, "expected prompt, chosen and rejected, conversations or instruction"),
        ({"chosen": [USER, ANSWER]}, "unknown format"),
        ({"chosen": "4", "rejected": "5"}, "instruction: found chosen, rejected"),
        ({"question": "a", "chosen": "4", "rejected": "5"}, 'such as data.columns = {prompt = "question"}'),
        ({"prompt": "a", "chosen": "4"}, "no 'rejected'"),
        ({"chosen": [USER, ANSWER], "rejected": [{**USER, "content": "?"}, WRONG]}, "have different prompts"),
        (
            {"conversations": [HUMAN, GPT], "chosen": GPT, "rejected": GPT},
            "must end with a user turn",
        ),
        (
            {"prompt": "a", "chosen": [{**ANSWER, "weight": 0}], "rejected": "b"},
            "nothing is left to train on",
        ),
        (
            {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "loss": False}]},
            "nothing is left to train on",
        ),
    ],
)
def test_what_is_no_pair(row, message):
    with pytest.raises(RowError) as caught:
        read_row(row, PAIR)
    assert message in str(caught.value)


def test_no_column_is_meant_by_its_own_name():
    with pytest.raises(RowError, match=r"found prompt \(null\), completion$"):
        read_row({"prompt": None, "completion": "b"}, COMPLETION)


def test_results_are_in_the_order_of_their_calls():
    calls = [{"id": name, "function": {"name": "f", "arguments": {"a": name}}} for name in ("x", "y")]
    results = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("y", "x")]
    row = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results, ANSWER]}
    ((_, *tool_results, _),) = read_row(row, COMPLETION).sides
    assert [each.text for each in tool_results] == ["of x", "of y"]
    with pytest.raises(RowError, match="more results than calls: two results have one tool_call_id"):
        read_row({"messages": [*row["messages"][:2], results[0], results[0], ANSWER]}, COMPLETION)
    for message in results:
        del message["tool_call_id"]
    ((_, *tool_results, _),) = read_row(row, COMPLETION).sides
    assert [each.text for each in tool_results] == ["of y", "of x"]


def test_a_call_whose_id_is_null_has_none():
    """As a table writes it; its result may have one all the same."""
    call = {"id": None, "function": {"name": "f", "arguments": {}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "c1", "content": "r"}
    ((first, *_),) = read_row({"messages": [USER, turn, answered, ANSWER]}, COMPLETION).sides
    assert first.calls[0].id == ""


def test_results_of_calls_with_one_id_stay_in_their_order():
    calls = [{"id": "x", "function": {"name": "f", "arguments": {}}}] * 2
    results = [{"role": "tool", "tool_call_id": "x", "content": text} for text in ("a", "b")]
    row = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results, ANSWER]}
    ((_, *tool_results, _),) = read_row(row, COMPLETION).sides
    assert [each.text for each in tool_results] == ["a", "b"]


def test_tools_are_read_in_each_way_that_people_write_them():
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    plain = [{"name": "f", "description": "d", "parameters": schema}]
    nested = [{"type": "function", "function": plain[0]}]
    texts = {read_tools(value) for value in (plain, nested, json.dumps(plain), json.dumps(nested))}
    assert len(texts) == 1
    (spec,) = tool_specs(texts.pop())
    assert (spec.name, spec.description, spec.parameters, spec.in_prompt) == ("f", "d", schema, True)
    assert [read_tools(value) for value in (None, [], "", " ")] == ["", "", "", ""]
    (bare,) = tool_specs(read_tools([{"name": "now", "description": None, "parameters": None}]))
    assert bare.parameters == {"type": "object", "properties": {}}


NO_SCHEMA = (
    "required 5",
    "required of anything",
    "properties: a list",
    "a property: a list",
    "half a character",
)
"""What a row is refused for: its author can mend it."""


@pytest.mark.parametrize("name", ODD)
def test_the_schema_of_a_rows_tool(name):
    schema, words = ODD[name]
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    if name in NO_SCHEMA:
        with pytest.raises(RowError, match=r"^its tools cannot be read: |a lone surrogate"):
            read_tools(tools)
    else:
        (spec,) = tool_specs(read_tools(tools))
        assert words in expected_arguments(spec.parameters)


@settings(max_examples=100, deadline=None)
@given(SCHEMAS)
def test_any_value_for_the_schema_of_a_rows_tool(schema):
    with suppress(RowError):
        (spec,) = tool_specs(read_tools([{"name": "look", "parameters": schema}]))
        assert expected_arguments(spec.parameters)


def test_the_rows_of_the_page_are_read():
    page = (Path(__file__).parents[3] / "docs" / "cold-start.md").read_text(encoding="utf-8")
    rows = [
        json.loads(line)
        for block in re.findall("```json\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
    ]
    formats = [read_row(row, PAIR if "chosen" in row else COMPLETION).format for row in rows]
    assert formats == ["plain", "plain", "OpenAI", "ShareGPT", "ShareGPT", "alpaca"]
