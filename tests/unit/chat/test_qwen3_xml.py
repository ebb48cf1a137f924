"""The qwen3_xml dialect: calls in XML are written and read as the released templates write them."""

import json

import pytest

from hermes_folders import write_hermes_tokenizer, write_xml_tokenizer
from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.chat.hermes_turn import UNREADABLE
from ramify.chat.qwen3_xml import Qwen3XmlRenderer, read_call
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError, RowError
from ramify.core.messages import Calls, Final, Message, Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from said import parts_of, tree_of

END = "<|im_end|>"
PROPERTIES = {
    "query": {"type": "string"},
    "k": {"type": "integer"},
    "fast": {"type": "boolean"},
    "filter": {"type": "object"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "any": {},
}
SPEC = ToolSpec("search", "d", {"type": "object", "properties": PROPERTIES}, True, 1.0)
PROBLEM = Problem("p", (Message.of("user", "Which city is older?"),), ())
ARGUMENTS = {"query": "3", "k": 3, "fast": True, "filter": {"a": "</parameter>"}, "note": None}


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    return Qwen3XmlRenderer(ChatTokenizer(write_xml_tokenizer(tmp_path_factory.mktemp("xml"))))


def turn_of(arguments, text="", name="search"):
    return AssistantTurn(text, "", (AssistantCall("a", name, json.dumps(arguments)),))


def test_a_context_that_grew_equals_a_fresh_render_token_by_token(renderer):
    arguments = {"query": " two\nlines ", "k": 3, "fast": True, "filter": {"a": [1, "b"]}}
    tool_calls = [{"type": "function", "function": {"name": "search", "arguments": arguments}}]
    fresh = renderer.tokenizer.template.render(
        [
            {"role": "user", "content": "Which city is older?"},
            {"role": "assistant", "content": "", "tool_calls": tool_calls},
            {"role": "tool", "content": "Paris"},
        ],
        renderer.tools_of([SPEC]).listed,
    )
    encode = renderer.tokenizer.encode
    grown = (
        *renderer.render_prompt(PROBLEM, [SPEC]),
        *encode(renderer.demonstrated(turn_of(arguments), [SPEC]) + END),
        *renderer.render_results([ToolResult("0", ToolStatus.OK, "Paris")], [SPEC]),
    )
    assert grown == encode(fresh)


@pytest.mark.parametrize("text", ["", "Let me see."])
def test_a_call_is_read_as_it_was_written(renderer, text):
    turn = turn_of(ARGUMENTS, text)
    for written in (renderer.demonstrated(turn, [SPEC]), renderer.turn_text(turn, [SPEC])):
        parsed = renderer.parse(f"<think> a </think>{written}{END}", [SPEC])
        assert parsed == Calls((ToolCall("0", "search", ARGUMENTS),))
    completion = f"{written}\n<tool_response>\nParis\n</tool_response>\nParis."
    tree = tree_of(renderer, PROBLEM, completion, [SPEC])
    assert (tree.nodes[1].turn, tree.nodes[-1].turn) == (parsed, Final("Paris."))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("query", "\n a \n", "\n a \n"),
        ("query", "null", "null"),
        ("query", "", ""),
        ("k", " 3 ", 3),
        ("k", "three", "three"),
        ("k", '3, "x": 4', '3, "x": 4'),
        ("fast", "False", False),
        ("fast", "true", True),
        ("filter", '{"a": 1}', {"a": 1}),
        ("note", "None", None),
        ("note", "4", "4"),
        ("any", "[1]", [1]),
        ("any", "NaN", "NaN"),
        ("unknown", "4", "4"),
    ],
)
def test_values_have_the_types_of_their_schemas(key, text, value):
    content = f"\n<function=search>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n"
    assert read_call(content, {"search": SPEC}) == ToolCall("0", "search", {key: value})


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ('{"name": "search", "arguments": {}}', UNREADABLE, "no function in XML; expected <function=NAME>"),
        ("<function=search><parameter=query>a</function>", "search", "<parameter=query> is not closed"),
        ("<function=search>a</function>", "search", "text stands outside"),
        ("<function=search><parameter=k>1</parameter>, </function>", "search", "text stands outside"),
        (f"<function=search>{'<parameter=k>1</parameter>' * 2}</function>", "search", "appears twice"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(content, name, message):
    unread = read_call(content, {"search": SPEC})
    assert (unread.name, unread.arguments) == (name, {})
    assert message in unread.malformed


def test_a_call_of_another_form_is_refused_in_demonstrations(renderer):
    with pytest.raises(RowError, match="a call's argument holds a closing tag: that of search"):
        renderer.demonstrated(turn_of({"query": "a </parameter>"}), [SPEC])
    completion = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
    with pytest.raises(RowError, match="as another dialect does"):
        parts_of(renderer, f"{completion}<tool_response>7</tool_response>Rome", [SPEC])


def test_arguments_that_are_no_json_become_a_call_that_cannot_be_read(renderer):
    turn = AssistantTurn("", "", (AssistantCall("a", "search", "query: a"),))
    parsed = renderer.parse(renderer.turn_text(turn, [SPEC]) + END, [SPEC])
    assert isinstance(parsed, Calls)
    assert parsed.calls[0].malformed.startswith("text stands outside")


def test_a_template_of_another_family_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r'as model\.dialect = "qwen3_xml" does \(<tool_call> with <function='
    ):
        Qwen3XmlRenderer(ChatTokenizer(write_hermes_tokenizer(tmp_path)))
