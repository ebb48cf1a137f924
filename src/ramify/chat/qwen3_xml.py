"""The qwen3_xml dialect: calls in XML, as Qwen3-Coder and Qwen3.5 write them. All else is as in the hermes dialect.

    <tool_call>
    <function=search>
    <parameter=query>
    capital of France
    </parameter>
    </function>
    </tool_call>

Values carry no type: a parameter that its schema calls a string is text, any other one is JSON if it can be read so.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ramify.chat.arguments import read_object
from ramify.chat.call_forms import QWEN3_XML
from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.chat.hermes import HermesRenderer
from ramify.chat.hermes_turn import UNREADABLE
from ramify.core.errors import RowError
from ramify.core.messages import ToolCall, ToolSpec

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?(</parameter>|\Z)", re.DOTALL)
_CLOSING = re.compile(r"</(?:parameter|function|tool_call)>")
_TAG_IN_JSON = re.compile(r"<(?=/?(?:tool_call|tool_response|function|parameter)\b)")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
"""Spellings of JSON and of Python, which chat templates write."""
_EXPECTED = (
    "expected <function=NAME>, then <parameter=KEY> VALUE </parameter> for each argument, then </function>"
)


class Qwen3XmlRenderer(HermesRenderer):
    """The qwen3_xml dialect over a chat template that has it."""

    form = QWEN3_XML
    other_calls = re.compile(r"<result>|<function_call>|<tool_call>\s*\{|<\|python_tag\|>|\[TOOL_CALLS\]")

    def _call_reader(self, tools: Sequence[ToolSpec]) -> Callable[[str], ToolCall]:
        return partial(read_call, tools=self.tools_of(tools).by_name)

    def demonstrated(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a turn of a data set; no text in a call may close its parameter."""
        for call in turn.calls:
            texts = [text for pair in json.loads(call.arguments).items() for text in pair]
            if any(isinstance(text, str) and _CLOSING.search(text) for text in texts):
                raise RowError("a call's argument holds a closing tag", f"that of {call.name}")
        return super().demonstrated(turn, tools)

    def call_text(self, call: AssistantCall, tools: Sequence[ToolSpec]) -> str:  # noqa: ARG002 - see `parse`
        """Write a call in XML. Arguments that are no JSON object stay as they are, so that the policy gets an error."""
        try:
            arguments = read_object(call.arguments.strip() or "{}")
        except (ValueError, RecursionError):
            inside = call.arguments + "\n"
        else:
            inside = "".join(
                f"<parameter={key}>\n{_written(value)}\n</parameter>\n" for key, value in arguments.items()
            )
        return f"<tool_call>\n<function={call.name}>\n{inside}</function>\n</tool_call>"


def _written(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Write a value as the chat templates do: lists and objects as JSON, all else as Python's text of it."""
    if isinstance(value, dict | list):
        return _TAG_IN_JSON.sub(r"\\u003c", json.dumps(value, ensure_ascii=False))
    return str(value)


def read_call(content: str, tools: Mapping[str, ToolSpec]) -> ToolCall:
    """Parse the XML of one call; if that fails, the call's `malformed` says what was expected.

    Args:
        content: The text inside `<tool_call>`.
        tools: Tools by name. The arguments of another tool are texts.
    """
    function = _FUNCTION.fullmatch(content)
    if function is None:
        return ToolCall("0", UNREADABLE, {}, f"its text is no function in XML; {_EXPECTED}")
    name, inside = function[1].strip(), function[2]
    parameters = tools[name].parameters if name in tools else {}
    schemas = parameters.get("properties", {})
    arguments: dict[str, Any] = {}
    position = 0
    for part in _PARAMETER.finditer(inside):
        key = part[1].strip()
        if not part[3]:
            return ToolCall("0", name, {}, f"<parameter={key}> is not closed; {_EXPECTED}")
        if key in arguments:
            return ToolCall("0", name, {}, f"<parameter={key}> appears twice; {_EXPECTED}")
        if inside[position : part.start()].strip():
            break
        arguments[key] = _value(part[2], schemas.get(key, {"type": "string"}))
        position = part.end()
    if inside[position:].strip():
        return ToolCall("0", name, {}, f"text stands outside of its parameters; {_EXPECTED}")
    return ToolCall("0", name, arguments)


def _value(text: str, schema: Any) -> Any:  # noqa: ANN401 - a subschema, and any JSON value
    kinds, word = _kinds(schema), text.strip()
    if "string" in kinds:
        return None if "null" in kinds and word.lower() in ("null", "none") else text
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        read = read_object(f'{{"value": {word}}}', unique_keys=True)
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text


def _kinds(schema: Any) -> set[str]:  # noqa: ANN401 - a subschema
    """Return the types that a schema names, also as one of several."""
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type", [])
    named = {kind} if isinstance(kind, str) else set(kind)
    choices = schema.get("anyOf") or []
    return named | {
        each["type"] for each in choices if isinstance(each, dict) and isinstance(each.get("type"), str)
    }
