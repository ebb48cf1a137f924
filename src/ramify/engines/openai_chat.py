"""The engine that asks a chat endpoint: POST {base_url}/chat/completions, for evaluation only.

It sends the path of a request as messages (`chat/conversation.py`). The dialect says how: with tags a result is a message of
the user; in the hermes dialect the service gets the tools, and calls and results have the roles of OpenAI's API. The answer
becomes a turn in the dialect's text. Untested on hosted services.

Services differ in the fields that they take. One that a turn can do without is left out once the service has refused it, and
a note says so; for any other the error names the key to change.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Unpack

from ramify.chat.conversation import Line
from ramify.chat.endpoint_renderer import EndpointRenderer
from ramify.core.errors import ConfigError, EngineError
from ramify.core.protocols import Json
from ramify.core.records import Completion, Request
from ramify.engines.chat_wire import THOUGHT_FIELDS, ChatReply, messages, read_answer, without_thoughts
from ramify.engines.text_service import Service, TextService
from ramify.net.client import HttpClient
from ramify.net.failures import RequestFailedError

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
    (r"\btop_p\b", "set sampling.top_p = 1"),
    (r"\btools?\b|\btool_choice\b", _TOOL_ADVICE),
)
"""What to do about a refusal that says this."""


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
        settings, lines = self._settings(request), self._lines(request)
        offered = self._renderer.offered_tools(request.tools)
        while True:
            body = self._body(settings, lines, offered)
            try:
                reply = read_answer(await self._post(body), request.stops, "stop" in body)
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
                "engine 'openai': a chat endpoint writes whole turns after messages, and this context is none of that; set "
                'engine.api = "completions"'
            )
        return self._renderer.conversation(path, request.tools)

    def _body(
        self, settings: Mapping[str, Json], lines: Sequence[Line], tools: Sequence[Mapping[str, Json]]
    ) -> dict[str, Json]:
        """The request without what the service refuses."""
        field = self._thought_field
        shown = without_thoughts(lines) if field in self._left_out else lines
        body: dict[str, Json] = {
            **{name: value for name, value in settings.items() if name not in self._left_out},
            "messages": messages(shown, field),
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
        sent = _names(body)
        refused = [name for name in _DISPENSABLE if name in sent and re.search(rf"\b{name}\b", detail)]
        if refused:
            self._leave_out(refused[0], "the service refuses it")
            return
        if advice is None:
            raise EngineError(f"engine 'openai': {failed}") from None
        raise ConfigError(f"engine 'openai': {failed}; {advice}") from None

    def _leave_out(self, field: str, why: str) -> None:
        if field not in self._left_out:
            self._left_out.add(field)
            self._note(f"engine 'openai': requests go without {field} ({why}), {_DISPENSABLE[field]}")


def _names(body: Mapping[str, Json]) -> set[str]:
    """Names of the fields of a request and of its messages."""
    sent = body["messages"]
    assert isinstance(sent, list)
    return {*body, *(name for message in sent for name in message)}
