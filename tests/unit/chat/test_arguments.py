import json
import time

import pytest
from hypothesis import given, settings

from hermes_folders import QWEN3, write_hermes_tokenizer
from ramify.chat.arguments import describe_tools, expected_arguments, read_call, text_argument
from ramify.chat.hermes import HermesRenderer
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tags import parse_turn
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Calls, MalformedTurn, Message, Problem, ToolCall, ToolSpec
from random_schemas import FINE, ODD, SCHEMAS, arguments

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
    ("content", "expected"),
    [
        ('{"key": "a", "limit": 3}', {"key": "a", "limit": 3}),
        ('{"limit": [1, {"x": null}], "other": 1e3}', {"limit": [1, {"x": None}], "other": 1000.0}),
        ('{"key": "two\nlines\t"}', {"key": "two\nlines\t"}),
        ('{"key": "\\u003c/lookup>"}', {"key": "</lookup>"}),
        ("{}", {}),
        ("", {}),
    ],
)
def test_json_arguments(content, expected):
    assert read_call(LOOKUP, content) == ToolCall("0", "lookup", expected)


@pytest.mark.parametrize(
    ("content", "message"),
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
def test_what_is_no_json_object_is_malformed_and_says_what_was_expected(content, message):
    call = read_call(LOOKUP, content)
    assert call.arguments == {}
    assert message in call.malformed
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


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ('<lookup> {"key": "</lookup>', "</lookup> in a string of its JSON ended it. In a string write \\u003c/lookup>"),
        ('<lookup> {"key": "<lookup> x </lookup>', "</lookup> in a string of its JSON ended it"),
        ('<think> <lookup> {} </think> <lookup>\n{"key": "a", "b": "</now>', "</now> in a string of its JSON ended it"),
        ('<lookup> {"key": "a" </lookup>', "it ends before the object does"),
    ],
)  # fmt: skip
def test_a_closing_tag_in_a_string_ends_the_turn_and_is_named(turn, reason):
    """Engines stop at the tag's text."""
    parsed = parse_turn(turn, {"lookup": LOOKUP, "now": NOW})
    assert isinstance(parsed, Calls)
    (call,) = parsed.calls
    assert (call.name, call.arguments) == ("lookup", {})
    assert reason in call.malformed


def test_a_closing_tag_outside_of_json_closes_what_it_names():
    tools = {"lookup": LOOKUP, "now": NOW}
    for turn in ('<lookup> {"key": "a"} </now>', '<think> <lookup> {"a </think> </now>'):
        assert parse_turn(turn, tools) == Calls((ToolCall("0", "now", {}, "</now> closes nothing"),))


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
    described = describe_tools([NOW, spec({"key": TEXT, "limit": NUMBER}, ["key"], in_prompt=True)])
    schema = json.dumps(LOOKUP.parameters)
    assert described.splitlines()[1:] == [
        f"<lookup> {{...}} </lookup>: Looks up. The arguments are a JSON object of this schema: {schema}"
    ]


# any JSON schema can be shown in a prompt, and a malformed call names what was expected, in both dialects

PROBLEM = Problem("p", (Message.of("user", "?"),), ("1",))
MOST_CHARS = 300_000
"""Of a prompt with one tool, whatever its schema."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return ChatTokenizer(write_hermes_tokenizer(tmp_path_factory.mktemp("tokenizer"), QWEN3))


def looking(parameters):
    return ToolSpec("look", "Looks.", parameters, True, 1.0, in_prompt=True)


def used(tokenizer, parameters):
    """Use a tool in both dialects: the prompts' texts, and the message about a call that cannot be read."""
    tool = looking(parameters)
    texts = []
    for kind in (TagRenderer, HermesRenderer):
        renderer = kind(tokenizer)
        texts.append(renderer.prompt_text(PROBLEM, [tool]))
        assert renderer.render_prompt(PROBLEM, [tool])
        json.dumps(renderer.offered_tools([tool]), allow_nan=False)
        for turn in (
            "<think>x</think><look>{</look>",
            "<look>{}</look>",
            "<look></look>",
            "<look>[1]</look>",
        ):
            parsed = renderer.parse(turn, [tool])
            assert kind is HermesRenderer or isinstance(parsed, Calls)
    return texts, read_call(tool, "[").malformed


@pytest.mark.parametrize(("parameters", "words"), ODD.values(), ids=ODD)
def test_an_ordinary_odd_schema(tokenizer, parameters, words):
    texts, malformed = used(tokenizer, parameters)
    tool = looking(parameters)
    assert words in expected_arguments(tool.parameters)
    if text_argument(tool) is None:
        assert malformed.endswith(expected_arguments(tool.parameters))
    assert all("look" in text for text in texts)


@pytest.mark.parametrize("parameters", FINE, ids=range(len(FINE)))
def test_a_schema_that_is_fine_stands_in_prompts_as_it_is(tokenizer, parameters):
    before = json.dumps(parameters, ensure_ascii=False)
    tool = looking(parameters)
    assert json.dumps(tool.parameters, ensure_ascii=False) == before
    (_, hermes), _ = used(tokenizer, parameters)
    assert f'"parameters": {before}' in hermes
    if text_argument(tool) is None:
        assert describe_tools([tool]).endswith(f"of this schema: {before}")


@settings(max_examples=100, deadline=None)
@given(SCHEMAS)
def test_any_schema(tokenizer, parameters):
    began = time.thread_time()
    texts, _ = used(tokenizer, parameters)
    assert time.thread_time() - began < 10
    assert max(map(len, texts)) < MOST_CHARS
    tool = looking(parameters)
    assert looking(tool.parameters) == tool
    assert all(isinstance(part, dict) for part in tool.parameters.get("properties", {}).values())
    assert all(isinstance(name, str) for name in tool.parameters.get("required", []))
    assert len(expected_arguments(tool.parameters)) < 5_000


def nested(depth, wrap):
    schema = {}
    for _ in range(depth):
        schema = wrap(schema)
    return arguments({"a": schema})


def fanned(where, steps, width):
    """References that double at each step."""
    parts = {
        f"X{step}": {
            "anyOf": [{"$ref": f"#/{where}/X{step + 1}"}] * width,
            "items": {"$ref": f"#/{where}/X{step + 1}"},
        }
        for step in range(steps)
    }
    return arguments({"a": {"$ref": f"#/{where}/X0"}}, **{where: parts})


@pytest.mark.parametrize(
    "parameters",
    [
        nested(100_000, lambda inner: {"items": inner}),
        nested(100_000, lambda inner: {"default": [inner]}),
        nested(99, lambda inner: {"anyOf": [inner, inner]}),
        fanned("$defs", 60, 3),
        fanned("components", 60, 3),
        arguments(
            {str(number): {} for number in range(200_000)},
            required=[str(number) for number in range(200_000)],
        ),
        arguments({"a": {"enum": [*range(200_000)]}}),
        arguments({"a": {"type": "string", "description": "x" * 10**7}}, required=["a"]),
        arguments({"a" * 10**7: {"type": "string"}}),
        arguments({"a": {"$ref": "#/x/0"}}, x=[{"$ref": f"#/x/{number + 1}"} for number in range(50_000)]),
        {"$ref": "#/x/0", "x": [{"$ref": f"#/x/{number + 1}"} for number in range(50_000)]},
        arguments({str(number): {"$ref": "#/" + "a/" * 10_000} for number in range(500)}),
    ],
    ids=[
        "deep",
        "deep data",
        "doubled",
        "fan",
        "inlined fan",
        "wide",
        "enum",
        "text",
        "name",
        "chain",
        "root",
        "long refs",
    ],
)
def test_a_schema_that_is_too_large_is_cut(tokenizer, parameters):
    texts, _ = used(tokenizer, parameters)
    assert max(map(len, texts)) < MOST_CHARS
