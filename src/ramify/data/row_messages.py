"""Lists of messages in a row, as lines of a conversation: {role, content, tool_calls?} of OpenAI's API, {from, value} of ShareGPT."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from ramify.chat.arguments import read_object
from ramify.chat.conversation import AssistantCall, AssistantTurn, Line, split_thought
from ramify.core.errors import RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import Message, Role, ToolResult, ToolStatus
from ramify.data.row_columns import as_record

WEIGHTS = ("weight", "loss", "train")
"""Names of the weight of a message, and of a row."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names of a turn's thought: those of services and of chat templates."""
_READ = {
    "system": ("role", "content", "name", *WEIGHTS),
    "user": ("role", "content", "name", *WEIGHTS),
    "assistant": ("role", "content", "name", "tool_calls", *_THOUGHTS, *WEIGHTS),
    "tool": ("role", "content", "name", "tool_call_id", *WEIGHTS),
}
"""Fields of a message by role: those that are read, and those that are ignored."""

_ROLES = {
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "ipython": "tool",
    **{role: role for role in _READ},
}
"""Our roles by those of data sets."""

_ARGUMENTS = ("arguments", "parameters", "args", "input")
"""Names of a call's arguments: OpenAI's, Llama's, and those of LangChain and Anthropic."""
_OF_CALL = frozenset({"id", "type", "index", "function"})
_A_ROLE = re.compile(rf"""(['"])(?:role|from)\1\s*:\s*\1(?:{"|".join(_ROLES)})\1""")
"""The role of a message in a text, as JSON or Python writes it. Answers that are JSON may have such keys, with other values."""
_A_TEXT = re.compile(r"(['\"])(?:content|value)\1\s*:")
_ALONE = ({"role", "content"}, {"from", "value"})
_FIELDS = {"from", "value"}.union(*_READ.values())
"""What a message that is JSON text by itself has, and may have."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_WRAPPED = re.compile(r"\s*<(tool_response|result)>.*</\1>\s*", re.DOTALL)
"""A whole message that is results in a dialect's tags."""
_CALLS = {"tool_response": "</tool_call>", "result": "</"}
"""By the tag of a result the text that ends a call before it."""


def is_messages_text(value: object) -> bool:
    """Return True for a list of messages, or one message, that was written into a column of texts, in JSON or as Python prints it."""
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("{"):
        return text.endswith("}") and _A_ROLE.search(text) is not None and _is_message(as_record(text))
    is_list = text.startswith("[") and text.endswith("]") and text[1:].lstrip().startswith("{")
    return is_list and _A_ROLE.search(text) is not None


def _is_message(record: object) -> bool:
    """Return True for a message alone; an object with other keys may be an answer. Text that is no JSON may be a printed message."""
    if isinstance(record, str):
        return _A_TEXT.search(record) is not None
    fields = (
        {key for key, value in record.items() if value is not None} if isinstance(record, dict) else set()
    )
    return fields <= _FIELDS and any(fields >= needed for needed in _ALONE)


def text_of(value: object, where: str) -> str:
    """Return a text of a row.

    Raises:
        RowError: It is no text, or cannot be encoded.
    """
    if not isinstance(value, str):
        kind = "missing or null" if value is None else type(value).__name__
        raise RowError("expected text", f"{where} is {kind}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RowError("a lone surrogate, which is valid JSON but not text", where) from None
    return value


def read_lines(
    messages: object, column: str, tools: str = "", *, wrapped: bool = True, malformed: bool = False
) -> list[Line]:
    """Return the lines of a list of messages; results are in the order of their calls.

    A call directly after a text of the assistant, or after another call, joins its turn.

    Args:
        messages: The list or one message, or the JSON text of either.
        column: The column that it stands in.
        tools: The row's tools (`row_tools.read_tools`), which say what a null among the arguments of a call means.
        wrapped: A user's message that is nothing but results in a dialect's tags, behind a turn with a call, is a result.
        malformed: Arguments that are a text stay as the model wrote them, also where they are no JSON object.

    Raises:
        RowError: It is no such list.
    """
    lines: list[Line] = []
    for number, record in _records(messages, column):
        if "from" in record or "value" in record:
            where = f"turn {number} of {column!r}"
            _require_read(record, ("from", "value", *WEIGHTS), where)
            if record.get("from") in ("function_call", "tool_call"):
                _join_calls(lines, record, where, tools)
            else:
                text = text_of(record.get("value"), where)
                role = _role(record.get("from"), where, "is from")
                lines.append(_line(role, text, record, where, lines if wrapped else ()))
        else:
            where = f"message {number} of {column!r}"
            role = _role(record.get("role"), where, "has")
            _require_read(record, _READ[role], where)
            calls = _call_list(record.get("tool_calls"), where) if role == "assistant" else []
            content = record.get("content", "" if calls else None)
            text = (
                _as_json(content, where)
                if role == "tool" and _is_value(content)
                else _content(content, where)
            )
            line = _line(role, text, record, where, lines if wrapped else ())
            if isinstance(line, AssistantTurn):
                line = replace(
                    line,
                    thought=_thought(record, where),
                    calls=tuple(_call(call, where, tools, malformed=malformed) for call in calls),
                )
            lines.append(line)
    return _in_order_of_calls(lines)


def _records(value: object, column: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            value = parse_json(value, unique_keys=True)
        except ValueError as error:
            raise RowError(f"{column!r} cannot be read", str(error)) from None
    messages = [value] if isinstance(value, dict) else value
    if not isinstance(messages, list) or not messages:
        raise RowError(f"{column!r} must be a list of messages")
    for number, record in enumerate(map(as_record, messages), 1):
        if not isinstance(record, dict):
            raise RowError("a message is not an object", f"message {number} of {column!r}")
        yield number, {key: inner for key, inner in record.items() if inner is not None}


def _role(name: object, where: str, verb: str) -> str:
    if not isinstance(name, str) or name not in _ROLES:
        raise RowError("a message has an unknown role", f"{where} {verb} {name!r:.40}")
    return _ROLES[name]


def _require_read(record: dict[str, Any], read: Sequence[str], where: str) -> None:
    unread = next((key for key, value in record.items() if key not in read and value not in ([], "")), None)
    if unread is not None:
        raise RowError("a message has an unsupported field", f"{where} has {unread!r:.40}")


def _line(role: str, text: str, record: Mapping[str, Any], where: str, before: Sequence[Line]) -> Line:
    trained = _is_trained(record, where)
    if role == "assistant":
        return AssistantTurn(text, trained=trained is not False)
    if trained:
        raise RowError("only turns of the assistant are trained on", f"{where} has a weight")
    if role == "tool" or (role == "user" and _is_result(text, before)):
        return ToolResult(str(record.get("tool_call_id", "")), ToolStatus.OK, text)
    return Message.of(cast(Role, role), text)


def _is_trained(record: Mapping[str, Any], where: str) -> bool | None:
    """Return what the weight of a message says, which has several names; None if it has none."""
    values = {float(record[key]) for key in WEIGHTS if isinstance(record.get(key), int | float)}
    if any(not isinstance(record.get(key, 0), int | float) for key in WEIGHTS) or not values <= {0.0, 1.0}:
        raise RowError("the weight of a message must be 0 or 1", where)
    if len(values) > 1:
        raise RowError("the weights of a message contradict each other", where)
    return bool(values.pop()) if values else None


def _is_result(text: str, before: Sequence[Line]) -> bool:
    match = _WRAPPED.fullmatch(text)
    turn = next((line for line in reversed(before) if not isinstance(line, ToolResult)), None)
    return (
        match is not None
        and isinstance(turn, AssistantTurn)
        and (bool(turn.calls) or _CALLS[match[1]] in turn.text[-200:])
    )


def _thought(record: Mapping[str, Any], where: str) -> str:
    """Return the thought of a turn; some services write it under two names."""
    thoughts = {text_of(record[key], f"{key!r} of {where}") for key in _THOUGHTS if key in record} - {""}
    if len(thoughts) > 1:
        raise RowError("a turn has two thoughts", where)
    return thoughts.pop() if thoughts else ""


def _is_value(content: object) -> bool:
    """Return True if the result of a tool is an object, a number, or a list of objects, and no pieces of a text."""
    if isinstance(content, list) and content:
        return all(isinstance(piece, dict) and _is_value(piece) for piece in content)
    if isinstance(content, dict):
        return "type" not in content and content.keys() != {"text"}
    return isinstance(content, int | float)


def _as_json(value: object, where: str) -> str:
    return text_of(json.dumps(value, ensure_ascii=False), f"'content' of {where}")


def _content(value: object, where: str) -> str:
    """Return the text of a message, which may come in pieces {type: "text", text}."""
    if not isinstance(value, list):
        return text_of(value, f"'content' of {where}")
    texts = []
    for piece in value:
        if isinstance(piece, dict) and piece.get("type", "text") in _TEXT_PARTS:
            piece = piece.get("text")
        elif not isinstance(piece, str):
            raise RowError("a message has unsupported content", f"{where} has content that is not text")
        texts.append(text_of(piece, where))
    return "".join(texts)


def _call_list(value: object, where: str) -> list[object]:
    """Return the calls of a message, a list or its JSON text."""
    if isinstance(value, str) and value.strip():
        value = _parsed(value, where)
    if not isinstance(value or [], list):
        raise RowError("a call cannot be read", f"'tool_calls' of {where} is not a list")
    return cast(list[object], value or [])


def _parsed(text: str, where: str) -> object:
    try:
        return parse_json(text, unique_keys=True)
    except ValueError as error:
        raise RowError("a call cannot be read", f"{where}: {error}") from None


def _join_calls(lines: list[Line], record: Mapping[str, Any], where: str, tools: str) -> None:
    """Add a turn that is JSON {name, arguments} or a list of such, perhaps behind a thought."""
    turn = split_thought(text_of(record.get("value"), where))
    value = _parsed(turn.text, where)
    calls = tuple(_call(call, where, tools) for call in (value if isinstance(value, list) else [value]))
    trained = _is_trained(record, where) is not False
    before = lines[-1] if lines else None
    if isinstance(before, AssistantTurn) and not turn.thought:
        if before.trained != trained:
            raise RowError(
                "a turn is trained on in part", f"{where} and the text or call before it are one turn"
            )
        lines[-1] = replace(before, calls=before.calls + calls)
    else:
        lines.append(AssistantTurn("", turn.thought, calls, trained))


def _call(call: object, where: str, tools: str, *, malformed: bool = False) -> AssistantCall:
    """Return a call {id?, function: {name, arguments}} or {name, arguments}; each object may be JSON text."""
    call = as_record(call)
    function = as_record(call.get("function", call)) if isinstance(call, dict) else None
    if (
        not isinstance(call, dict)
        or not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
    ):
        raise RowError("a call cannot be read", f"a call of {where} has no name")
    names = [name for name in _ARGUMENTS if function.get(name) is not None]
    unread = sorted(
        name
        for record, read in (
            (call, () if function is not call else (*_ARGUMENTS, "name")),
            (function, ("name", *_ARGUMENTS)),
        )
        for name, value in record.items()
        if name not in _OF_CALL and name not in read and value not in (None, "", [], {})
    )
    if unread or len(names) > 1:
        wrong = unread[0] if unread else f"{names[0]!r} and {names[1]}"
        raise RowError("a call has an unsupported field", f"a call of {where} has {wrong!r:.60}")
    raw = function[names[0]] if names else {}
    # The text of a custom call is no arguments.
    if malformed and isinstance(raw, str) and call.get("type") != "custom":
        written = text_of(raw, f"a call of {where}")
        return AssistantCall(_id(call), text_of(function["name"], where), written)
    try:
        if isinstance(raw, str):
            arguments = read_object(raw if raw.strip() else "{}", unique_keys=True)
        else:
            arguments = read_object(json.dumps(_declared(raw, _parameters(function["name"], tools))))
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError("a call cannot be read", f"the arguments of a call of {where}: {error}") from None
    written = text_of(json.dumps(arguments, ensure_ascii=False), f"a call of {where}")
    return AssistantCall(_id(call), text_of(function["name"], where), written)


def _id(call: Mapping[str, Any]) -> str:
    """Return the id of a call; "" if it has none, which tables write as null."""
    return "" if call.get("id") is None else str(call["id"])


def _parameters(name: str, tools: str) -> object:
    """Return the schema of the arguments of a row's tool; None if the row has no such tool."""
    return next((tool["parameters"] for tool in _listed(tools or "[]") if tool["name"] == name), None)


_listed = lru_cache(256)(json.loads)
"""Parses a row's tools; many rows have the same."""


def _declared(value: object, schema: object) -> object:
    """Return arguments without the nulls that the `datasets` library adds; a null that the schema requires and allows stays."""
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [_declared(inner, items) for inner in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") if isinstance(schema, dict) else None
    schemas = properties if isinstance(properties, dict) else {}
    required = schema.get("required") if isinstance(schema, dict) else None
    names = required if isinstance(required, list) else ()
    return {
        key: _declared(inner, schemas.get(key))
        for key, inner in value.items()
        if inner is not None or (key in names and _allows_null(schemas.get(key)))
    }


def _allows_null(schema: object) -> bool:
    if not isinstance(schema, dict):
        return False
    choices = [choice for key in ("anyOf", "oneOf") for choice in schema.get(key) or []]
    kinds = schema.get("type")
    return (
        any(map(_allows_null, choices))
        or "null" in (kinds if isinstance(kinds, list) else [kinds])
        or None in (schema.get("enum") or [])
        or bool(schema.get("nullable"))
    )


def _in_order_of_calls(lines: list[Line]) -> list[Line]:
    ordered: list[Line] = []
    calls: tuple[AssistantCall, ...] = ()
    results: list[ToolResult] = []
    for line in lines:
        if isinstance(line, ToolResult):
            results.append(line)
            continue
        ordered += [*_of_calls(calls, results), line]
        calls, results = (line.calls if isinstance(line, AssistantTurn) else ()), []
    return [*ordered, *_of_calls(calls, results)]


def _of_calls(calls: Sequence[AssistantCall], results: list[ToolResult]) -> list[ToolResult]:
    """Return the results in the order of the calls, if all of them name one."""
    order = {call.id: index for index, call in enumerate(calls)}
    is_named = "" not in order and len(order) == len(calls) and all(result.call_id for result in results)
    if not calls or not is_named:
        return results
    if any(result.call_id not in order for result in results):
        raise RowError("a result follows no call", "its tool_call_id is that of no call before it")
    if len({result.call_id for result in results}) < len(results):
        raise RowError("more results than calls", "two results have one tool_call_id")
    return sorted(results, key=lambda result: order[result.call_id])
