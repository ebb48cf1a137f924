import json

import pytest

from ramify.chat.arguments import describe_tools, expected_arguments, read_call, text_argument
from ramify.chat.tags import parse_turn
from ramify.core.messages import Calls, MalformedTurn, ToolCall, ToolSpec

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def spec(properties, required, name="lookup", **more):
    parameters = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(name, "Looks up.", parameters, True, 1.0, **more)


LOOKUP = spec({"key": TEXT, "limit": NUMBER}, ["key"])
NOW = spec({}, [], "now")


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (spec({"query": TEXT}, ["query"]), "query"),
        (ToolSpec("search", "d", {"type": "object", "required": ["query"]}, True, 1.0), "query"),
        (spec({"kind": {"type": "string", "enum": ["a", "b"]}}, ["kind"]), "kind"),
        (LOOKUP, None),
        (NOW, None),
        (spec({"n": NUMBER}, ["n"]), None),
        (spec({"query": TEXT}, []), None),
        (spec({"a": TEXT, "b": TEXT}, ["a", "b"]), None),
        (spec({"a": {"$ref": "#/$defs/Color"}}, ["a"]), None),
        (spec({"a": {"anyOf": [TEXT, {"type": "null"}]}}, ["a"]), None),
    ],
)
def test_one_required_text_stands_as_it_is_and_all_else_as_json(tool, name):
    assert text_argument(tool) == name


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ('{"key": "a", "limit": 3}', {"key": "a", "limit": 3}),
        ('{"limit": [1, {"x": null}], "other": 1e3}', {"limit": [1, {"x": None}], "other": 1000.0}),
        ('{"key": "two\nlines\t"}', {"key": "two\nlines\t"}),
        ('{"key": "\\u003c/lookup>"}', {"key": "</lookup>"}),
        ("{}", {}),
        ("", {}),
    ],
)
def test_json_arguments(content, arguments):
    assert read_call(LOOKUP, content) == ToolCall("0", "lookup", arguments)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("Paris", "Expecting value"),
        ('"Paris"', "it is a text"),
        ("[1]", "it is a list"),
        ("3", "it is a number"),
        ("null", "it is null"),
        ("true", "it is true or false"),
        ("{'key': 'a'}", "Expecting property name"),
        ('{"key": "a"', "Expecting ',' delimiter"),
        ('{"key": NaN}', "NaN is not a JSON number"),
        ('{"key": -Infinity}', "-Infinity is not a JSON number"),
        ('{"key": 1e999}', "1e999 is not a JSON number"),
        (f'{{"key": {"9" * 5000}}}', "digits"),
        (f'{{"key": {"[" * 40}{"]" * 40}}}', "nested more than 32 deep"),
        (f'{{"key": {"[" * 100_000}', "recursion"),
    ],
)
def test_what_is_no_json_object_is_malformed_and_says_what_was_expected(content, told):
    call = read_call(LOOKUP, content)
    assert call.arguments == {}
    assert told in call.malformed
    assert call.malformed.endswith("expected an object with key (string), limit (integer, optional)")
    assert "\n" not in call.malformed


def test_what_is_read_can_be_written():
    deep = '{"key": ' + "[" * 31 + "]" * 31 + "}"
    call = read_call(LOOKUP, deep)
    assert json.dumps(call.arguments).replace(" ", "") == deep.replace(" ", "")


def test_calls_in_a_turn():
    tools = {"lookup": LOOKUP, "now": NOW}
    turn = '<think> x </think> <lookup> {"key": "a"} </lookup>'
    assert parse_turn(turn, tools) == Calls((ToolCall("0", "lookup", {"key": "a"}),))
    assert parse_turn("<now></now>", tools) == Calls((ToolCall("0", "now", {}),))
    closed = "</now> closes nothing"
    assert parse_turn("</now>", tools) == Calls((ToolCall("0", "now", {}, closed),))
    assert isinstance(parse_turn('<lookup> {"key": "<result>"} </lookup>', tools), MalformedTurn)


def test_expected_arguments_in_words():
    parameters = {
        "$defs": {"Color": {"enum": ["red", "blue"], "type": "string"}},
        "properties": {
            "a": {"$ref": "#/$defs/Color"},
            "b": {"anyOf": [NUMBER, {"type": "null"}]},
            "c": {"const": 1},
            "d": {},
        },
        "required": ["a", "d"],
    }
    assert expected_arguments(parameters) == (
        'a ("red" or "blue"), b (integer or null, optional), c (1, optional), d (any value)'
    )
    assert expected_arguments({}) == "no arguments"


def test_a_prompt_names_the_tools_that_ask_for_it():
    assert describe_tools([LOOKUP, NOW]) == ""
    told = describe_tools([NOW, spec({"key": TEXT, "limit": NUMBER}, ["key"], in_prompt=True)])
    schema = json.dumps(LOOKUP.parameters)
    assert told.splitlines()[1:] == [
        f"<lookup> {{...}} </lookup>: Looks up. The arguments are a JSON object of this schema: {schema}"
    ]
