"""Functions as calls see them: what is read of their signatures and docstrings, and what comes of arguments and results."""

import functools
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from ramify.core.errors import ConfigError
from ramify.core.messages import ToolStatus
from ramify.tools.functions import tool_from
from scripted_agents import call_tool


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Box(TypedDict):
    width: float


class Person(BaseModel):
    name: str


def lookup(key: str, limit: int = 3, exact: bool = False) -> str:
    """Looks a key up.

    More about it,
    on two lines.

    Args:
        key: What to look for,
            on two lines.
        limit (int): Most results.

    Returns:
        The results.
    """
    return f"{key} {limit} {exact}"


def in_numpys_style(key: str, limit: int = 5) -> str:
    """
    Looks a key up.

    Parameters
    ----------
    key : str
        What to look for,
        on two lines.
    limit : int, optional
        Most results.

    Returns
    -------
    str
        The results.
    """
    return f"{key} {limit}"


def in_sphinxs_style(key: str, limit: int = 5) -> str:
    """Looks a key up.

    :param key: What to look for,
        on two lines.
    :param int limit: Most results.
    :returns: The results.
    """
    return f"{key} {limit}"


def with_odd_types(key: str, limit: int = 5) -> str:
    """Looks a key up.

    Note:
        Not shown.

    Args:
        key (:obj:`str`): What to look for,
            on two lines.
        limit (int): Most results.

    Todo:
    """
    return f"{key} {limit}"


def documented(function, text="Does something."):
    function.__doc__ = text
    return function


@pytest.mark.parametrize("function", [in_numpys_style, in_sphinxs_style, with_odd_types])
def test_other_styles_of_docstrings(function):
    spec = tool_from(function).spec
    assert spec.description == "Looks a key up."
    assert {name: about["description"] for name, about in spec.parameters["properties"].items()} == {
        "key": "What to look for, on two lines.",
        "limit": "Most results.",
    }


class Doubler:
    """Doubles."""

    def __call__(self, n: int) -> int:
        """Args:
        n: A number.
        """
        return 2 * n


def test_a_docstring_may_have_arguments_alone():
    spec = tool_from(Doubler).spec
    assert spec.description == "Doubles."
    assert spec.parameters["properties"]["n"]["description"] == "A number."


@pytest.mark.parametrize(
    "text",
    ["Does.\n\nArgs:\n\nReturns:\n    It.", "Does.\n\n:", "Does.\n\n: : it", "Does.\n\n:param a b c d: it"],
)
def test_text_that_is_nearly_a_section_is_no_mistake(text):
    spec = tool_from(documented(lambda: "", text), name="does").spec
    assert spec.description.startswith("Does.")


def test_hints_and_docstring_are_the_schema():
    spec = tool_from(lookup).spec
    assert (spec.name, spec.description) == ("lookup", "Looks a key up. More about it, on two lines.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "key": {"type": "string", "description": "What to look for, on two lines."},
            "limit": {"type": "integer", "description": "Most results.", "default": 3},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["key"],
        "additionalProperties": False,
    }
    assert (spec.forks, spec.timeout_seconds, spec.hedge_seconds, spec.in_prompt) == (True, 60.0, None, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"key": "a"}, "a 3 False"),
        ({"key": "a", "limit": "7", "exact": "true"}, "a 7 True"),
        ({"key": "a", "limit": 2.0}, "a 2 False"),
    ],
)
def test_a_function_that_blocks_gets_converted_arguments(arguments, text):
    result = call_tool(tool_from(lookup), arguments)
    assert (result.call_id, result.status, result.text) == ("c", ToolStatus.OK, text)


@pytest.mark.parametrize("function", [lookup, documented(functools.partial(lookup, limit=1))])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "key: Field required"),
        ({"key": 3}, "key: Input should be a valid string"),
        ({"key": "a", "limit": "many"}, "limit: Input should be a valid integer"),
        ({"key": "a", "size": 3}, "size: Extra inputs are not permitted"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "; 2 more. Expected"),
    ],
)
def test_wrong_arguments_are_malformed_and_tell_what_was_expected(function, arguments, message):
    result = call_tool(tool_from(function), arguments)
    assert result.status is ToolStatus.MALFORMED
    assert result.text.startswith("The call to lookup was not run: ")
    assert message in result.text
    assert result.text.endswith(
        "Expected key (string), limit (integer, optional), exact (boolean, optional)."
    )


def test_a_call_that_was_malformed_before_is_not_run():
    result = call_tool(tool_from(lookup), {"key": "a"}, "it is empty")
    assert result.status is ToolStatus.MALFORMED
    assert result.text == "The call to lookup was not run: it is empty."


HINTS = [
    (str, "a", "a", {"type": "string"}),
    (int, 3, 3, {"type": "integer"}),
    (float, 3, 3.0, {"type": "number"}),
    (bool, True, True, {"type": "boolean"}),
    (list[int], ["1"], [1], {"type": "array", "items": {"type": "integer"}}),
    (dict[str, float], {"a": 1}, {"a": 1.0}, {"type": "object", "additionalProperties": {"type": "number"}}),
    (dict, {"title": 1}, {"title": 1}, {"type": "object", "additionalProperties": True}),
    (Literal["a", 1], 1, 1, {"enum": ["a", 1]}),
    (str | None, None, None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    (
        int | list[str],
        ["a"],
        ["a"],
        {"anyOf": [{"type": "integer"}, {"items": {"type": "string"}, "type": "array"}]},
    ),
    (Color, "red", Color.RED, {"$ref": "#/$defs/Color"}),
    (Point, {"x": "1"}, Point(1), {"$ref": "#/$defs/Point"}),
    (Box, {"width": 1}, {"width": 1.0}, {"$ref": "#/$defs/Box"}),
    (Person, {"name": "Bo"}, Person(name="Bo"), {"$ref": "#/$defs/Person"}),
    (Any, [None], [None], {}),
]


@pytest.mark.parametrize(("hint", "argument", "value", "schema"), HINTS, ids=[str(case[0]) for case in HINTS])
def test_hints(hint, argument, value, schema):
    values = []

    def see(it) -> str:
        """Sees."""
        values.append(it)
        return "seen"

    see.__annotations__ = {"it": hint}
    tool = tool_from(see)
    assert tool.spec.parameters["properties"] == {"it": schema}
    assert json.loads(json.dumps(tool.spec.parameters)) == tool.spec.parameters
    assert '"title"' not in json.dumps(tool.spec.parameters)
    assert call_tool(tool, {"it": argument}).status is ToolStatus.OK
    assert values == [value]
    assert type(values[0]) is type(value)


def test_a_parameter_may_have_any_name():
    def odd(copy: str, _x: int, schema: int, model_config: int, title: str, cls: str = "c") -> list:
        """Odd."""
        return [copy, _x, schema, model_config, title, cls]

    tool = tool_from(odd)
    assert list(tool.spec.parameters["properties"]) == [
        "copy",
        "_x",
        "schema",
        "model_config",
        "title",
        "cls",
    ]
    arguments = {"copy": "a", "_x": 1, "schema": 2, "model_config": 3, "title": "t"}
    assert call_tool(tool, arguments).text == '["a",1,2,3,"t","c"]'


RETURNS = [
    ("text", ToolStatus.OK, "text"),
    (None, ToolStatus.EMPTY, "give returned nothing."),
    ("", ToolStatus.EMPTY, "give returned nothing."),
    (0, ToolStatus.OK, "0"),
    (False, ToolStatus.OK, "false"),
    ([], ToolStatus.OK, "[]"),
    ({"a": [1, 2.5, None], "\u00fc": "x"}, ToolStatus.OK, '{"a":[1,2.5,null],"\u00fc":"x"}'),
    ((1, "a"), ToolStatus.OK, '[1,"a"]'),
    (Point(1), ToolStatus.OK, '{"x":1,"y":0}'),
    ([Person(name="Bo"), Color.RED], ToolStatus.OK, '[{"name":"Bo"},"red"]'),
    (float("nan"), ToolStatus.ERROR, "Out of range float values"),
    ({1, 2}, ToolStatus.ERROR, "it returned set, which is neither text nor JSON"),
    (b"x", ToolStatus.ERROR, "it returned bytes"),
    (object(), ToolStatus.ERROR, "it returned object"),
    (Point, ToolStatus.ERROR, "it returned type"),
    (np.zeros(2), ToolStatus.ERROR, "it returned ndarray, which is neither text nor JSON"),
]


@pytest.mark.parametrize(("value", "status", "text"), RETURNS, ids=range(len(RETURNS)))
@pytest.mark.parametrize("is_async", [False, True])
def test_returned_values(value, status, text, is_async):
    def give():
        """Gives."""
        return value

    async def give_later():
        """Gives."""
        return value

    result = call_tool(tool_from(give_later if is_async else give, name="give"), {})
    assert result.status is status
    assert text in result.text if status is ToolStatus.ERROR else text == result.text


def test_given_values_vanish_from_the_schema():
    tool = tool_from(lookup, args={"limit": "9", "exact": True})
    assert list(tool.spec.parameters["properties"]) == ["key"]
    assert call_tool(tool, {"key": "a"}).text == "a 9 True"
    assert call_tool(tool, {"key": "a", "limit": 1}).status is ToolStatus.MALFORMED


def define(parameters, docstring="Bad.", body="pass"):
    names = {}
    exec(f"def bad({parameters}): {body}", globals(), names)
    return documented(names["bad"], docstring)


@pytest.mark.parametrize(
    ("source", "args", "message"),
    [
        (define("when: functools.partial"), {}, "bad: parameter 'when': a call cannot carry"),
        (define("a, b: int"), {}, "bad: parameter 'a' has no type hint. Expected str, int"),
        (define("a: 'Missing'"), {}, "bad: its signature cannot be read: NameError: name 'Missing'"),
        (define("*words: str"), {}, "bad: parameter '[*]words: str' is variadic positional"),
        (define("**words: str"), {}, "bad: parameter '[*][*]words: str' is variadic keyword"),
        (define("a: str, /"), {}, "bad: parameter 'a: str' is positional-only"),
        (define("a: str", None), {}, "bad: no docstring. Write one"),
        (
            define("a: str", "Bad.\n\nArgs:\n    b: Text."),
            {},
            "bad: its docstring describes 'b', which is no parameter",
        ),
        (
            define("a: str", "Bad.\n\nArgs:\n    a what"),
            {},
            "bad: its Args section: Expected a colon in 'a what'",
        ),
        (
            define("a: str", "Bad.\n\nArgs:\n    a what: Text."),
            {},
            "bad: its Args section: expected \"name: text\", got 'a what'",
        ),
        (define("a: str", "Bad. " * 2_000_000), {}, "bad: its docstring has 10,000,000 characters"),
        (define("a: str", body="yield a"), {}, "bad: it yields"),
        (3, {}, "int: expected a function or a class, got int"),
        (lookup, {"size": 3}, "lookup: args: no parameter 'size'. It takes key, limit, exact."),
        (lookup, {"limit": "many"}, "lookup: args: limit: Input should be a valid integer"),
    ],
    ids=range(15),
)
def test_what_no_call_can_run_is_refused_at_start(source, args, message):
    with pytest.raises(ConfigError, match=message) as caught:
        tool_from(source, args=args)
    assert "\n" not in str(caught.value)
