"""What models and tools say in the tests of dialects: turns with calls, results, and demonstrations that are one text."""

import json

from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.chat.demonstrations import check, demonstrate, split
from ramify.core.messages import Calls, ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import TreeKey

FIRST = TreeKey(0, 0)


def spec(name, key):
    """A tool with one argument, a text."""
    parameters = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    return ToolSpec(name, "d", parameters, True, 1.0)


SPECS = [spec("search", "query"), spec("python", "program")]


def results(*texts):
    return [ToolResult(str(index), ToolStatus.OK, text) for index, text in enumerate(texts)]


def turn_with_calls(text, thought, *arguments):
    """A turn of a data set or an endpoint that calls `search` with each of `arguments`."""
    calls = (AssistantCall("a", "search", json.dumps(each, ensure_ascii=False)) for each in arguments)
    return AssistantTurn(text, thought, tuple(calls))


def require_unread(parsed, name, message):
    """The turn's one call could not be read, and says why."""
    assert isinstance(parsed, Calls)
    (unread,) = parsed.calls
    assert (unread.name, unread.arguments) == (name, {})
    assert message in unread.malformed


def parts_of(renderer, text, tools=()):
    """The turns and the results of a text, checked."""
    parts = split(renderer, (AssistantTurn(text),), tools)
    check(renderer, parts, tools)
    return parts


def tree_of(renderer, problem, text, tools=(), key=FIRST):
    """The text as a tree with one leaf."""
    return demonstrate(renderer, problem, parts_of(renderer, text, tools), key, tools)
