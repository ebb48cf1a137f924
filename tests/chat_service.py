"""A stand-in for a service with OpenAI's chat API on loopback, strict about what it is sent; a test says what the model writes."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loopback import HttpRequest, Loopback, Reply, as_json, serve

FIELDS = {"model", "messages", "max_tokens", "temperature", "top_p", "stop", "seed", "tools"}
FIELDS_OF_VLLM = {"top_k", "min_p", "repetition_penalty"}
KEYS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


class RefusedError(Exception):
    """The request breaks the API's rules; `param` is the field."""

    def __init__(self, param: str, message: str) -> None:
        self.param = param
        super().__init__(message)


@dataclass(frozen=True)
class Service:
    """What the stand-in is like.

    Attributes:
        model: Gets the messages and the whole body; gives the text that the model writes, or fields of a message.
        says_which: The stop string is named, as vLLM does.
        lacks: Fields that it refuses.
        thoughts: The field in which it keeps `<think> .. </think>` apart, and takes it back; None: it leaves it in.
        models: The models that it lists; it lists none if there are none.
        owned_by: Whose models they are; "vllm" takes vLLM's fields too.
    """

    model: Callable[[list[dict[str, Any]], Mapping[str, Any]], Any]
    says_which: bool = False
    lacks: frozenset[str] = frozenset()
    thoughts: str | None = None
    models: tuple[str, ...] = ()
    owned_by: str = "somebody"

    def answer(self, request: HttpRequest) -> Reply:
        if self.models and (request.method, request.path) == ("GET", "/v1/models"):
            return as_json({"data": [{"id": name, "owned_by": self.owned_by} for name in self.models]})
        if (request.method, request.path) != ("POST", "/v1/chat/completions"):
            return as_json({"error": {"message": "Not Found"}}, 404)
        body = request.json()
        try:
            self._check(body)
        except RefusedError as refused:
            error = {"message": str(refused), "type": "invalid_request_error", "param": refused.param}
            return as_json({"error": error}, 400)
        wrote = self.model(body["messages"], body)
        if isinstance(wrote, Reply):
            return wrote
        if isinstance(wrote, Mapping):
            message, reason = {"role": "assistant", "content": None, **wrote}, "stop"
            return chosen(message, "tool_calls" if message.get("tool_calls") else reason)
        positions = [(wrote.find(stop), stop) for stop in body.get("stop", ()) if stop in wrote]
        at, stop = min(positions, default=(len(wrote), None))
        text, message = wrote[:at], {"role": "assistant"}
        if self.thoughts is not None and text.startswith("<think>"):
            thought, _, text = text.removeprefix("<think>").partition("</think>")
            message[self.thoughts] = thought
        message["content"] = text or None
        return chosen(message, "stop", **({"stop_reason": stop} if self.says_which else {}))

    def _check(self, body: Mapping[str, Any]) -> None:
        fields = FIELDS | FIELDS_OF_VLLM if self.owned_by == "vllm" else FIELDS
        if unknown := sorted(body.keys() - fields | body.keys() & self.lacks):
            raise RefusedError(
                unknown[0], f"Unsupported parameter: '{unknown[0]}' is not supported with this model."
            )
        for tool in body.get("tools", ()):
            must("tools", tool["type"] == "function")
            must("tools", tool["function"].keys() == {"name", "description", "parameters"})
        waiting: list[str] = []
        known_ids: set[str] = set()
        for message in body["messages"]:
            unknown = sorted(message.keys() - KEYS[message["role"]] - {self.thoughts})
            must("messages", not unknown, f"Unknown field in a message: {unknown}")
            must(
                "messages",
                (message["role"] == "tool") == bool(waiting),
                "each call has one tool message after it",
            )
            must(
                "messages",
                not waiting or message["tool_call_id"] == waiting.pop(0),
                "tool_call_id is of no call",
            )
            calls = message.get("tool_calls", ())
            must("messages", isinstance(message["content"], str), "content must be a string")
            for call in calls:
                must("messages", call["type"] == "function")
                must(
                    "messages",
                    isinstance(json.loads(call["function"]["arguments"]), dict),
                    "arguments are no object",
                )
                must(
                    "messages",
                    call["id"] not in known_ids and re.fullmatch("[a-zA-Z0-9]{9}", call["id"]),
                    "bad id",
                )
                known_ids.add(call["id"])
                waiting.append(call["id"])


def must(param: str, holds: object, message: str = "not as the API has it") -> None:
    if not holds:
        raise RefusedError(param, message)


def chosen(message: Any, reason: str | None = "stop", **more: Any) -> Reply:
    """An answer with one choice."""
    choice = {"index": 0, "message": message, "finish_reason": reason, **more}
    return as_json({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice]})


def called(*calls: tuple[str, Any]) -> dict[str, Any]:
    """Fields of a message with tool calls; arguments that are no text are written as JSON."""
    return {
        "tool_calls": [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for number, (name, arguments) in enumerate(calls)
        ]
    }


def turn_requests(server: Loopback) -> list[HttpRequest]:
    """The requests for a turn: services list their models too."""
    return [request for request in server.requests if request.method == "POST"]


@contextmanager
def chat_service(model: Callable[..., Any], **like: Any):
    """Serve until the block ends."""
    service = Service(model, **like)
    with serve(service.answer) as server:
        yield server
