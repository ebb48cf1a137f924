"""The wire format of POST /chat/completions: messages that are sent, and the message that comes back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ramify.chat.conversation import AssistantCall, AssistantTurn, Line
from ramify.core.messages import Message
from ramify.core.protocols import Json
from ramify.core.records import Finish
from ramify.engines.text_service import FILTERED, as_text, cut_at_stop, first_choice
from ramify.net.client import Answer

THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Fields of a message in which services keep the model's reasoning apart from its text."""


def messages(lines: Sequence[Line], thought_field: str | None) -> list[Json]:
    """A conversation as it is sent; thoughts go into `thought_field`, or, if it is None, into the text."""
    return [_message(line, thought_field) for line in lines]


def without_thoughts(lines: Sequence[Line]) -> list[Line]:
    """The conversation without the thoughts of earlier turns."""
    return [replace(line, thought="") if isinstance(line, AssistantTurn) else line for line in lines]


def _message(line: Line, thought_field: str | None) -> Json:
    if isinstance(line, Message):
        return {"role": line.role, "content": line.text}
    if not isinstance(line, AssistantTurn):
        return {"role": "tool", "tool_call_id": line.call_id, "content": line.text}
    apart = thought_field is not None and line.thought
    text = line.text.strip() if apart else line.whole_text
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in line.calls
    ]
    return {
        "role": "assistant",
        # Some chat templates fail on null, also beside calls.
        "content": text,
        **({thought_field: line.thought.strip()} if thought_field is not None and apart else {}),
        **({"tool_calls": calls} if calls else {}),
    }


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The reply of a chat service.

    Attributes:
        turn: The turn, up to the stop string that ends it.
        finish: Why it ended.
        thought_field: The field with the reasoning that was kept apart; None: there was none.
        cut_in_thought: The service took a stop string in the reasoning for the end of the turn.
    """

    turn: AssistantTurn
    finish: Finish
    thought_field: str | None
    cut_in_thought: bool


def read_answer(answer: Answer, stops: Sequence[str], sent: bool) -> ChatReply:
    """Read an answer.

    Args:
        answer: The answer.
        stops: Strings that end a turn.
        sent: Whether the request contained them.

    Raises:
        RequestFailedError: It is not an answer of a chat endpoint.
    """
    choice = first_choice(answer.json())
    message = None if choice is None else choice.get("message")
    if choice is None or not isinstance(message, Mapping):
        raise answer.malformed("expected choices with a message")
    field = next((name for name in THOUGHT_FIELDS if _is_text(message.get(name))), None)
    thought = "" if field is None else as_text(str(message[field]))
    reason, refusal = choice.get("finish_reason"), message.get("refusal")
    if _is_text(refusal):
        return ChatReply(
            AssistantTurn(as_text(str(refusal)), thought), Finish.EOS, field, cut_in_thought=False
        )
    calls = _calls(answer, message.get("tool_calls"))
    content = _content(answer, message.get("content"))
    if content is None:
        if not calls and field is None and "content" not in message and reason != FILTERED:
            raise answer.malformed("expected a message with a content")
        content = ""
    if calls and reason == "tool_calls":
        choice = {**choice, "finish_reason": "stop"}
    text, finish = cut_at_stop(answer, choice, as_text(content), stops, sent and not calls)
    cut = sent and reason == "stop" and bool(thought) and not content.strip() and not calls
    ended_itself = "stop_reason" in choice and choice["stop_reason"] not in stops
    if finish is Finish.STOP:
        calls = ()
    return ChatReply(AssistantTurn(text, thought, calls), finish, field, cut and not ended_itself)


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _content(answer: Answer, content: Json) -> str | None:
    """The text of a message: a string, or the text parts of a list; None for null."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text", "") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise answer.malformed("expected a message with a text")
    return "".join(map(str, texts))


def _calls(answer: Answer, calls: Json) -> tuple[AssistantCall, ...]:
    """The calls of a message; arguments need not be valid JSON, since the model wrote them."""
    read = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            raise answer.malformed("expected tool_calls with the name of a function")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
        read.append(AssistantCall("", as_text(name), as_text(text)))
    return tuple(read)
