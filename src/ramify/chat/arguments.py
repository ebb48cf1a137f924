"""The arguments of a call inside its tag, and the description of tools in a prompt.

If a tool's only argument is a text, the tag holds that text as it is, as with the papers' tools: `<search> query
</search>`. For any other tool the tag holds a JSON object: `<lookup> {"key": "a", "limit": 3} </lookup>`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ramify.core.messages import ToolCall, ToolSpec

_MAX_DEPTH = 32
"""Levels of nested lists and objects; everything that records a call can write and read this many."""


def text_argument(spec: ToolSpec) -> str | None:
    """The name of a tool's only argument, if that is a required text; None if a call carries a JSON object."""
    required = list(spec.parameters.get("required", ()))
    properties = spec.parameters.get("properties", {key: {"type": "string"} for key in required})
    if len(required) != 1 or list(properties) != required:
        return None
    return required[0] if properties[required[0]].get("type") == "string" else None


def read_call(spec: ToolSpec, content: str) -> ToolCall:
    """Parse the text inside a tag into a call; if that fails, the call's `error` says what was expected."""
    name = text_argument(spec)
    if name is not None:
        return ToolCall(
            "0", spec.name, {name: content} if content else {}, None if content else "it is empty"
        )
    try:
        arguments = read_object(content or "{}")
    except (ValueError, RecursionError) as error:
        expected = expected_arguments(spec.parameters)
        return ToolCall(
            "0", spec.name, {}, f"its text is not a JSON object ({error}); expected an object with {expected}"
        )
    return ToolCall("0", spec.name, arguments)


def expected_arguments(parameters: Mapping[str, Any]) -> str:
    """The arguments of a JSON schema in words: `key (string), limit (integer, optional)`."""
    required = parameters.get("required", ())
    names = [
        f"{name} ({_kind(schema, parameters)}{'' if name in required else ', optional'})"
        for name, schema in parameters.get("properties", {}).items()
    ]
    return ", ".join(names) or "no arguments"


def describe_tools(specs: Sequence[ToolSpec]) -> str:
    """The text that describes `specs` in a prompt; "" if none of them asks to be described."""
    described = [spec for spec in specs if spec.in_prompt]
    if not described:
        return ""
    lines = ["You can call these tools. The result of a call follows it between <result> and </result>."]
    return "\n".join([*lines, *map(_description, described)])


def _description(spec: ToolSpec) -> str:
    name = text_argument(spec)
    if name is not None:
        about = spec.parameters.get("properties", {}).get(name, {}).get("description")
        more = f" {name}: {about}" if about else ""
        return f"<{spec.name}> {name} </{spec.name}>: {spec.description}{more}"
    schema = json.dumps(spec.parameters, ensure_ascii=False)
    form = f"<{spec.name}> {{...}} </{spec.name}>"
    return f"{form}: {spec.description} The arguments are a JSON object of this schema: {schema}"


def _kind(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """The type of a value, in a few words."""
    if "$ref" in schema:
        return _kind(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "enum" in schema or "const" in schema:
        return " or ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    if "anyOf" in schema:
        return " or ".join(_kind(choice, whole) for choice in schema["anyOf"])
    return str(schema.get("type", "any value"))


def read_object(content: str) -> dict[str, Any]:
    """Parse `content` as a JSON object; strings may contain raw line breaks.

    Raises:
        ValueError: It is not one, or holds what a record cannot: a number that is not finite, too many levels.
        RecursionError: It is nested deeper than Python can parse.
    """
    value = json.loads(content, strict=False, parse_constant=_refuse, parse_float=_finite)
    if not isinstance(value, dict):
        raise ValueError(f"it is {_NAMES.get(type(value), 'null')}")
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    return value


_NAMES = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
