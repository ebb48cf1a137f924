"""Messages of OpenAI's API and turns of ShareGPT, as lines of a conversation."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from ramify.chat.arguments import read_object
from ramify.chat.conversation import AssistantCall, AssistantTurn, Line, split_thought
from ramify.core.errors import RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import Message, Role, ToolResult, ToolStatus

_READ = {
    "system": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "name", "tool_calls", "reasoning_content"),
    "tool": ("role", "content", "name", "tool_call_id"),
}
"""Fields of a message by role: those that are read, and those that are ignored."""

_ROLES: dict[str, Role] = {"human": "user", "user": "user", "system": "system"}
_ASSISTANT, _TOOL = ("gpt", "assistant"), ("observation", "tool")


def text_of(value: object, where: str) -> str:
    """Return a text of a row.

    Raises:
        RowError: It is no text, or cannot be encoded.
    """
    if not isinstance(value, str):
        raise RowError("expected text", f"{where} is {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RowError("a lone surrogate, which is valid JSON but not text", where) from None
    return value


def message_lines(messages: object, column: str) -> list[Line]:
    """Return the lines of a list of {role, content, tool_calls?, tool_call_id?}; results are in the order of their calls.

    Raises:
        RowError: It is no such list.
    """
    return _in_order_of_calls(
        [
            _message(message, f"message {number} of {column!r}")
            for number, message in _records(messages, column)
        ]
    )


def _records(value: object, column: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if not isinstance(value, list) or not value:
        raise RowError(f"{column!r} must be a list of messages")
    for number, record in enumerate(value, 1):
        if not isinstance(record, dict):
            raise RowError("a message is not an object", f"message {number} of {column!r}")
        yield number, {key: inner for key, inner in record.items() if inner is not None}


def _message(message: dict[str, Any], where: str) -> Line:
    role = message.get("role")
    if not isinstance(role, str) or role not in _READ:
        raise RowError("a message has an unknown role", f"{where} has {role!r:.40}")
    _require_read(message, _READ[role], where)
    calls = message.get("tool_calls") or []
    text = _content(message.get("content", "" if calls else None), where)
    if role == "tool":
        return ToolResult(str(message.get("tool_call_id", "")), ToolStatus.OK, text)
    if role != "assistant":
        return Message.of(cast(Role, role), text)
    if not isinstance(calls, list):
        raise RowError("a call cannot be read", f"'tool_calls' of {where} is not a list")
    thought = text_of(message.get("reasoning_content", ""), f"'reasoning_content' of {where}")
    return AssistantTurn(text, thought, tuple(_call(call, where) for call in calls))


def _require_read(record: dict[str, Any], read: Sequence[str], where: str) -> None:
    unread = next((key for key, value in record.items() if key not in read and value not in ([], "")), None)
    if unread is not None:
        raise RowError("a message has an unsupported field", f"{where} has {unread!r:.40}")


def _content(value: object, where: str) -> str:
    """Return the text of a message, which may come in pieces {type: "text", text}."""
    pieces = value if isinstance(value, list) else [{"type": "text", "text": value}]
    for piece in pieces:
        if not isinstance(piece, dict) or piece.get("type") != "text":
            raise RowError("a message has unsupported content", f"{where} has content that is not text")
    return "".join(text_of(piece.get("text"), where) for piece in pieces)


def _call(call: object, where: str) -> AssistantCall:
    """Return a call {id?, function: {name, arguments}} or {name, arguments}; the arguments are an object or its JSON text."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if (
        not isinstance(call, dict)
        or not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
    ):
        raise RowError("a call cannot be read", f"a call of {where} has no name")
    raw = function.get("arguments", {})
    try:
        arguments = read_object(raw if isinstance(raw, str) else json.dumps(raw))
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError("a call cannot be read", f"the arguments of a call of {where}: {error}") from None
    written = text_of(json.dumps(arguments, ensure_ascii=False), f"a call of {where}")
    return AssistantCall(str(call.get("id", "")), text_of(function["name"], where), written)


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


def turn_lines(turns: object, column: str) -> list[Line]:
    """Return the lines of a list of {from, value}; a call directly after a text of the assistant joins its turn.

    Raises:
        RowError: It is no such list.
    """
    lines: list[Line] = []
    for number, turn in _records(turns, column):
        where = f"turn {number} of {column!r}"
        _require_read(turn, ("from", "value"), where)
        role, text = turn.get("from"), text_of(turn.get("value"), where)
        if role == "function_call":
            parts = split_thought(text)
            called = replace(parts, text="", calls=_calls(parts.text, where))
            before = lines[-1] if lines else None
            if isinstance(before, AssistantTurn) and not before.calls and not called.thought:
                lines[-1] = replace(before, calls=called.calls)
            else:
                lines.append(called)
        elif role in _ASSISTANT:
            lines.append(AssistantTurn(text))
        elif role in _TOOL:
            lines.append(ToolResult("", ToolStatus.OK, text))
        elif isinstance(role, str) and role in _ROLES:
            lines.append(Message.of(_ROLES[role], text))
        else:
            raise RowError("a message has an unknown role", f"{where} is from {role!r:.40}")
    return lines


def _calls(text: str, where: str) -> tuple[AssistantCall, ...]:
    """Return the calls of a turn, JSON {name, arguments} or a list of such."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise RowError("a call cannot be read", f"{where}: {error}") from None
    return tuple(_call(call, where) for call in (value if isinstance(value, list) else [value]))
