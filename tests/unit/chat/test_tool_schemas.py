"""Any JSON schema of a tool can be shown in a prompt, and a malformed call is told what was expected, in both dialects."""

import json
import time

import pytest
from hypothesis import given, settings

from hermes_folders import QWEN3, write_hermes_tokenizer
from ramify.chat.arguments import describe_tools, expected_arguments, read_call, text_argument
from ramify.chat.hermes import HermesRenderer
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Calls, Message, Problem, ToolSpec
from random_schemas import FINE, ODD, SCHEMAS, arguments

PROBLEM = Problem("p", (Message.of("user", "?"),), ("1",))
MOST_CHARS = 300_000
"""Of a prompt with one tool, whatever its schema."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return ChatTokenizer(write_hermes_tokenizer(tmp_path_factory.mktemp("tokenizer"), QWEN3))


def spec(parameters):
    return ToolSpec("look", "Looks.", parameters, True, 1.0, in_prompt=True)


def used(tokenizer, parameters):
    """What both dialects do with a tool: the prompts' texts, and the message about a call that cannot be read."""
    tool = spec(parameters)
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
    tool = spec(parameters)
    assert words in expected_arguments(tool.parameters)
    if text_argument(tool) is None:
        assert malformed.endswith(expected_arguments(tool.parameters))
    assert all("look" in text for text in texts)


@pytest.mark.parametrize("parameters", FINE, ids=range(len(FINE)))
def test_a_schema_that_is_fine_stands_in_prompts_as_it_is(tokenizer, parameters):
    before = json.dumps(parameters, ensure_ascii=False)
    tool = spec(parameters)
    assert json.dumps(tool.parameters, ensure_ascii=False) == before
    (_, hermes), _ = used(tokenizer, parameters)
    assert f'"parameters": {before}' in hermes
    if text_argument(tool) is None:
        assert describe_tools([tool]).endswith(f"of this schema: {before}")


@settings(max_examples=100, deadline=None)
@given(SCHEMAS)
def test_any_schema(tokenizer, parameters):
    began = time.monotonic()
    texts, _ = used(tokenizer, parameters)
    assert time.monotonic() - began < 10
    assert max(map(len, texts)) < MOST_CHARS
    tool = spec(parameters)
    assert spec(tool.parameters) == tool
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
