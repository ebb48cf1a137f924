"""The arguments of a call inside its tag, and the description of tools in a prompt.

If a tool's only argument is a text, the tag holds that text as it is, as with the papers' tools: `<search> query
</search>`. For any other tool the tag holds a JSON object: `<lookup> {"key": "a", "limit": 3} </lookup>`.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

from ramify.core.json_text import unique_object
from ramify.core.messages import ToolCall, ToolSpec
from ramify.core.tool_schema import resolve

_MAX_NAMES, _MAX_KINDS, _MAX_STEPS = 200, 200, 16
"""Limits of a message about a call: arguments, types of an argument, references followed to a type."""
_MAX_WORDS = 4_000
"""Characters of such a list of arguments."""
_MAX_DEPTH = 32
"""Levels of nested lists and objects; everything that records a call can write and read this many."""


def text_argument(spec: ToolSpec) -> str | None:
    """Return the name of a tool's only argument, if that is a required text; None if a call carries a JSON object."""
    required = spec.parameters.get("required", [])
    properties = spec.parameters.get("properties", {key: {"type": "string"} for key in required})
    if len(required) != 1 or list(properties) != required:
        return None
    name: str = required[0]
    return name if properties[name].get("type") == "string" else None


def read_call(spec: ToolSpec, content: str) -> ToolCall:
    """Parse the text inside a tag into a call; if that fails, the call's `malformed` says what was expected."""
    name = text_argument(spec)
    if name is not None:
        return ToolCall(
            "0", spec.name, {name: content} if content else {}, None if content else "it is empty"
        )
    try:
        arguments = read_object(content or "{}")
    except (ValueError, RecursionError) as error:
        reason, expected = json_fault(content, error), expected_arguments(spec.parameters)
        return ToolCall(
            "0",
            spec.name,
            {},
            f"its text is not a JSON object ({reason}); expected an object with {expected}",
        )
    return ToolCall("0", spec.name, arguments)


def expected_arguments(parameters: Mapping[str, Any]) -> str:
    """Return the arguments of a plain JSON schema in words: `key (string), limit (integer, optional)`."""
    required = frozenset(parameters.get("required", ()))
    described = []
    for name, schema in islice(parameters.get("properties", {}).items(), _MAX_NAMES):
        kinds = dict.fromkeys(islice(_kinds(schema, parameters, 0), _MAX_KINDS))
        described.append(f"{name} ({' or '.join(kinds)}{'' if name in required else ', optional'})")
    text = ", ".join(described) or "no arguments"
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}..."


def argument_fault(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return which argument a tool lacks, or a call of it; "" if neither does, or the schema allows arguments that it does not name."""
    missing = next((name for name in parameters.get("required", ()) if name not in arguments), None)
    if missing is not None:
        return f"needs {missing!r:.60}"
    if "properties" not in parameters or any(parameters.get(key) for key in _ALLOW_OTHERS):
        return ""
    other = next((name for name in arguments if name not in parameters["properties"]), None)
    return "" if other is None else f"has no argument {other!r:.60}"


_ALLOW_OTHERS = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")
"""Keywords of a schema that may allow arguments which `properties` does not name."""


def describe_tools(specs: Sequence[ToolSpec]) -> str:
    """Return the text that describes `specs` in a prompt; "" if none of them asks to be described."""
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


def _kinds(schema: Any, whole: Mapping[str, Any], depth: int) -> Iterator[str]:  # noqa: ANN401 - a subschema
    """Yield the types that a value may have; references may go round in circles, and fan out without end."""
    target = resolve(whole, schema["$ref"]) if isinstance(schema, dict) and "$ref" in schema else None
    if depth > _MAX_STEPS or not isinstance(schema, dict):
        yield "any value"
    elif target is not None:
        yield from _kinds(target[0], whole, depth + 1)
    elif "enum" in schema or "const" in schema:
        yield from map(json.dumps, schema.get("enum", [schema.get("const")]))
    elif "anyOf" in schema:
        for choice in schema["anyOf"]:
            yield from _kinds(choice, whole, depth + 1)
    else:
        kind = schema.get("type", "any value")
        yield from [kind] if isinstance(kind, str) else kind


def read_object(content: str, *, unique_keys: bool = False) -> dict[str, Any]:
    """Parse `content` as a JSON object; strings may contain raw line breaks.

    Args:
        content: The text.
        unique_keys: Refuse an object with a duplicate key, of which a call would keep the last value.

    Raises:
        ValueError: The text is not one, or holds a number that is not finite or too many levels.
        RecursionError: The text is nested deeper than Python can parse.
    """
    if unique_keys:
        return _plain_object(_decoder(unique_object).decode(content))
    return _plain_object(_DECODER.decode(content))


def object_at(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Parse the JSON object that begins at `start`, whatever follows it; return it and its end.

    Raises:
        ValueError: There is none, or it cannot be a call; see `read_object`.
        RecursionError: The text is nested deeper than Python can parse.
    """
    value, end = _DECODER.raw_decode(text, start)
    return _plain_object(value), end


def json_fault(content: str, error: Exception) -> str:
    """Return what is wrong with the text that `read_object` did not read."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    if not content.strip():
        return "it is empty"
    if content.lstrip().startswith(("```", "~~~")):
        return f"it stands in a Markdown fence: {error}"
    where = f"{error.msg}\n{content[: error.pos].rstrip()[-1:]}\n{content[error.pos :].strip()}"
    fault = next((words for pattern, words in _FAULTS if pattern.match(where)), None)
    return f"{fault}: {error}" if fault else str(error)


_FAULTS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Extra data\n.?\n[}\]\s]*\Z", "a bracket is closed twice"),
        (r"Extra data\n.?\n\{", "a second object follows the object"),
        (r"Extra data", "more text follows the object"),
        (r"Unterminated string", "a string is not closed"),
        (r".*\n.?\n\Z", "it ends before the object does"),
        (r".*\n.?\n'", "JSON has double quotes, not single ones"),
        (r".*\n.?\n[\u2018\u2019\u201c\u201d]", "JSON has straight quotes, not curly ones"),
        (r"Invalid \\", "a backslash is written twice in JSON"),
        # Python 3.11 points at the bracket, 3.13 at the comma before it.
        (r".*\n,\n[}\]]|Illegal trailing comma", "a comma stands before a closing bracket"),
        (r"Expecting ',' delimiter\n\"\n[^\"}\]]", "a quote in a string needs a backslash"),
        (r"Expecting ',' delimiter", "a comma or a bracket is missing"),
        (r".*\n.?\nTrue", "JSON writes true, not True"),
        (r".*\n.?\nFalse", "JSON writes false, not False"),
        (r".*\n.?\nNone", "JSON writes null, not None"),
        (r"Expecting property name.*\n.?\n[A-Za-z_]", "a key has no quotes"),
    )
]
"""What models often get wrong, by Python's message, the character before the place, and the text from there on."""


def _plain_object(value: object) -> dict[str, Any]:
    """Return a parsed value that is an object of few levels.

    Raises:
        ValueError: It is something else.
    """
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


def _decoder(pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> json.JSONDecoder:
    return json.JSONDecoder(
        strict=False, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=pairs_hook
    )


_DECODER = _decoder()
"""Made once: making one takes as long as parsing a call."""
