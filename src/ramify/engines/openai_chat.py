"""The engine that asks a chat endpoint: POST {base_url}/chat/completions, for evaluation only.

It sends the path of a request as messages (`chat/conversation.py`). The dialect says how: with tags a result is a message of
the user; in the hermes dialect the service gets the tools, and calls and results have the roles of OpenAI's API. The answer
becomes a turn in the dialect's text. Untested on hosted services.

Services differ in the fields that they take. One that a turn can do without is left out once the service has refused it, and
a note says so; for any other the error names the key to change.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

from ramify.chat.conversation import AssistantCall, AssistantTurn, Line
from ramify.chat.renderer import EndpointRenderer
from ramify.core.errors import ConfigError, EngineError
from ramify.core.messages import Message
from ramify.core.protocols import Json
from ramify.core.records import Completion, Finish, Request
from ramify.engines.openai import (
    FILTER_ADVICE,
    FILTERED,
    Service,
    TextService,
    as_engine_error,
    as_text,
    cut_at_stop,
    first_choice,
)
from ramify.net.client import HttpClient
from ramify.net.exchange import Answer
from ramify.net.failures import RequestFailedError

THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Fields of a message in which services keep the model's reasoning apart from its text."""
_THOUGHTS_LOST = "so the model does not see the thoughts of its earlier turns"
_DISPENSABLE = {
    "seed": "so its draws are its own",
    "stop": "so turns are cut here, and what the model writes after them is paid for and dropped",
    **dict.fromkeys(THOUGHT_FIELDS, _THOUGHTS_LOST),
}
"""Fields that a turn can do without, and what follows from that."""
_TOOL_ADVICE = 'start the service with tool calls (vLLM: --enable-auto-tool-choice and --tool-call-parser), or set model.dialect = "tags"'
_ADVICE = (
    (r"\bcontext\b|prompt is too long", "lower sampling.max_tokens or data.max_prompt_tokens"),
    (r"\bmax_tokens\b|\bmax_completion_tokens\b", "lower sampling.max_tokens"),
    (r"\btemperature\b", "set sampling.temperature = 1"),
    *FILTER_ADVICE,
    (r"\btools?\b|\btool_choice\b", _TOOL_ADVICE),
)
"""What to do about a refusal that says this."""


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


class OpenAIChatEngine(TextService):
    """Implements `core.protocols.Engine` with POST {base_url}/chat/completions, as far as messages and text can."""

    _endpoint = "chat/completions"
    _renderer: EndpointRenderer

    def __init__(self, client: HttpClient, renderer: EndpointRenderer, **service: Unpack[Service]) -> None:
        """Open no connection yet; the arguments are those of `TextService`."""
        super().__init__(client, renderer, **service)
        self._left_out: set[str] = set()
        self._limit = "max_tokens"
        self._thought_field: str | None = None
        self._told_of_silence = False

    async def generate(self, request: Request) -> Completion:
        """Write the next turn of the request's path. Logprobs are unknown and set to 0.

        Raises:
            EngineError: The request failed for good, entropies are asked for, the context is no path of whole turns, or
                the answer is none of a chat endpoint.
            ConfigError: The service refuses the request or answers in another dialect, and another value of a key helps.
            ServiceDownError: The service is down, or refuses the key.
        """
        await self._open(request)
        settings, lines = self._settings(request), self._lines(request)
        offered = self._renderer.offered_tools(request.tools)
        while True:
            body = self._body(settings, lines, offered)
            try:
                read = partial(read_chat_reply, stops=request.stops, sent="stop" in body)
                reply = await self._answer(body, request, read)
            except RequestFailedError as failed:
                self._learn_from(failed, body)
                continue
            self._thought_field = self._thought_field or reply.thought_field
            if reply.cut_in_thought:
                self._leave_out("stop", "the service looks for stop strings in the reasoning too")
                continue
            return self._completed(request, reply)

    def _lines(self, request: Request) -> Sequence[Line]:
        path = request.path
        if path is None or request.stop_context or any(node.context != "parent" for node in path.nodes):
            raise EngineError(
                "engine 'openai': a chat endpoint writes whole turns after messages, and this context is none of that. Set "
                'engine.api = "completions".'
            )
        return self._renderer.conversation(path, request.tools)

    def _body(
        self, settings: Mapping[str, Json], lines: Sequence[Line], tools: Sequence[Mapping[str, Json]]
    ) -> dict[str, Json]:
        """Return the request without what the service refuses."""
        field = self._thought_field
        if field in self._left_out:
            lines = [replace(line, thought="") if isinstance(line, AssistantTurn) else line for line in lines]
        body: dict[str, Json] = {
            **{name: value for name, value in settings.items() if name not in self._left_out},
            "messages": [chat_message(line, field) for line in lines],
            **({"tools": tools} if tools else {}),
        }
        body[self._limit] = body.pop("max_tokens")
        return body

    def _completed(self, request: Request, reply: ChatReply) -> Completion:
        turn = reply.turn
        if turn.calls and not self._renderer.offered_tools(request.tools):
            raise ConfigError(
                f"engine 'openai': the service calls {turn.calls[0].name!r} as OpenAI's API does, and model.dialect = \"tags\" "
                'has no such calls; set model.dialect = "hermes"'
            )
        if not (turn.text or turn.thought or turn.calls or self._told_of_silence):
            self._told_of_silence = True
            self._note("engine 'openai': the service gave an empty answer; each one ends its attempt")
        return self._encoded(request, self._renderer.turn_text(turn, request.tools), reply.finish)

    def _learn_from(self, failed: RequestFailedError, body: Mapping[str, Json]) -> None:
        """Have the next request be one that the service takes.

        Raises:
            EngineError: It is not known how.
            ConfigError: A key must change.
        """
        if failed.status in (404, 405):
            raise ConfigError(
                f"engine 'openai': {failed}; expected engine.url to be the address up to the version, such as "
                "http://127.0.0.1:8000/v1, and engine.model a model of the service"
            )
        detail = failed.detail.partition(": ")[2] if failed.status in (400, 422) else ""
        advice = next((advice for words, advice in _ADVICE if re.search(words, detail, re.IGNORECASE)), None)
        renamed = "max_completion_tokens" in detail and re.search(
            r"\binstead\b|unsupported", detail, re.IGNORECASE
        )
        if renamed and "max_tokens" in body:
            self._limit = "max_completion_tokens"
            return
        lines = body["messages"]
        assert isinstance(lines, list)
        sent = {*body, *(name for line in lines for name in line)}
        refused = [name for name in _DISPENSABLE if name in sent and re.search(rf"\b{name}\b", detail)]
        if refused:
            self._leave_out(refused[0], "the service refuses it")
            return
        if advice is None:
            raise as_engine_error(failed) from None
        raise ConfigError(f"engine 'openai': {failed}; {advice}") from None

    def _leave_out(self, field: str, why: str) -> None:
        if field not in self._left_out:
            self._left_out.add(field)
            self._note(f"engine 'openai': requests go without {field} ({why}), {_DISPENSABLE[field]}")


def chat_message(line: Line, thought_field: str | None) -> Json:
    """Return a line as it is sent; a thought goes into `thought_field`, or, if that is None, into the text."""
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


def read_chat_reply(answer: Answer, stops: Sequence[str], sent: bool) -> ChatReply:
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
    """Return the text of a message: a string, or the text parts of a list; None for null."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text", "") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise answer.malformed("expected a message with text")
    return "".join(map(str, texts))


def _calls(answer: Answer, calls: Json) -> tuple[AssistantCall, ...]:
    """Return the calls of a message; arguments need not be valid JSON, since the model wrote them."""
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
