"""Any OpenAI-compatible endpoint, as a chat model (`OpenAIChat`) or as a text engine (`OpenAIEngine`).

The chat model takes text and gives text, for summaries, judges and helpers. The engine is for evaluation and making data,
never for training; `engines/openai_chat.py` has the one that asks chat endpoints.

The engine uses POST {base_url}/completions. The context is sent as token ids if a probe shows that the service reads them as
we do (`_PROBE`). Otherwise it is sent as text, in which the service recognises special tokens by their spelling; so special
tokens that are only spelled out, by a web page or a data set, are broken up first. Untested on real services.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Unpack

from ramify.chat.renderer import ChatRenderer
from ramify.core.errors import EngineError
from ramify.core.messages import Message
from ramify.core.protocols import Json
from ramify.core.records import Completion, Finish, Request, TokenUsage
from ramify.engines.text_service import (
    FILTERED,
    Service,
    TextService,
    as_text,
    bearer,
    cut_at_stop,
    first_choice,
)
from ramify.net.client import Answer, HttpClient
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import redact

_PROBE = "Paris, 12 plus 30 is 42; caf\u00e9 \u4e2d\u6587 (x < y)"
"""If a service echoes this text for our tokenizer's ids of it, it reads ids, with the same meaning as our tokenizer."""


class OpenAIChat:
    """Implements `ramify.core.protocols.ChatModel` with POST {base_url}/chat/completions."""

    def __init__(
        self,
        client: HttpClient,
        *,
        base_url: str,
        model: str,
        key: str | None = None,
        extra: Mapping[str, Json] | None = None,
        whole: bool = False,
    ) -> None:
        """Open no connection yet.

        Args:
            client: HTTP client for this service alone, with the key as one of its secrets.
            base_url: Address up to the version, such as "http://127.0.0.1:8000/v1".
            model: Name of the model at the service.
            key: Key of the service, or None.
            extra: More fields for each request, such as {"top_p": 0.95}.
            whole: An answer that `max_tokens` cut is a failed request.
        """
        self._client, self._model, self._key, self._whole = client, model, key, whole
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._extra = dict(extra or {})
        self.usage = TokenUsage()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """The answer's text, without the reasoning before it.

        Raises:
            RequestFailedError: This request failed, the model refused it, or the answer has no text, or is cut and must be whole.
            ServiceDownError: The service is down, or refuses the key.
        """
        body: dict[str, Json] = {
            **self._extra,
            "model": self._model,
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        answer = await self._client.post_json(self._url, body, headers=bearer(self._key))
        read = answer.json()
        if isinstance(read, Mapping):
            self._count(read.get("usage"))
        return _text(answer, read, self._whole)

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()

    def _count(self, usage: Json) -> None:
        counted = usage if isinstance(usage, Mapping) else {}
        self.usage = TokenUsage(
            self.usage.answers + 1,
            self.usage.prompt_tokens + _number(counted.get("prompt_tokens")),
            self.usage.completion_tokens + _number(counted.get("completion_tokens")),
        )


def _text(answer: Answer, read: Json, whole: bool) -> str:
    choice = first_choice(read)
    message = None if choice is None else choice.get("message")
    if choice is None or not isinstance(message, Mapping):
        raise answer.malformed("expected choices with a message")
    if message.get("refusal") or choice.get("finish_reason") == FILTERED:
        raise _said_nothing(answer, "the model refused to answer")
    if whole and choice.get("finish_reason") == "length":
        raise RequestFailedError(FailureKind.CUT, redact(f"{answer.where}: max_tokens cut it; raise it"))
    text = after_thinking(content_text(message.get("content")))
    if not text:
        raise _no_text(answer, choice, message)
    return text


def content_text(content: Json) -> str:
    """The text of a message: a string, or the text parts of a list; "" for null."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "".join(part for part in parts if isinstance(part, str))


def after_thinking(content: str) -> str:
    """The text after the reasoning, if a server leaves that in; a template may have opened it in the prompt."""
    text = as_text(content).strip()
    opened = text.startswith("<think>")
    before, closed, after = text.partition("</think>")
    if closed and (opened or "<think>" not in before):
        return after.strip()
    return "" if opened else text


def _no_text(answer: Answer, choice: Mapping[str, Json], message: Mapping[str, Json]) -> RequestFailedError:
    if choice.get("finish_reason") == "length":
        return _said_nothing(answer, "the model wrote no answer within max_tokens; raise it")
    reasoned = message.get("reasoning_content") or message.get("reasoning")
    return _said_nothing(answer, f"the model wrote {'reasoning and ' if reasoned else ''}no text")


def _said_nothing(answer: Answer, detail: str) -> RequestFailedError:
    """The model gave no text, and the service did its part: its client does not count the request as failed."""
    return RequestFailedError(FailureKind.MALFORMED, redact(f"{answer.where}: {detail}"), answer.status)


def _number(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class OpenAIEngine(TextService):
    """Implements `core.protocols.Engine` with POST {base_url}/completions, as far as a service that returns text can."""

    _endpoint = "completions"

    def __init__(self, client: HttpClient, renderer: ChatRenderer, **service: Unpack[Service]) -> None:
        """Open no connection yet; the arguments are those of `TextService`. What kind of prompts it gets is noted."""
        super().__init__(client, renderer, **service)
        self._probing = asyncio.Lock()
        self._takes_ids: bool | None = None

    async def generate(self, request: Request) -> Completion:
        """Continue the request's ids, as text. Logprobs are unknown and set to 0.

        Raises:
            EngineError: The request failed for good, entropies are asked for, or the answer is not a completion.
            ServiceDownError: The service is down, or refuses the key.
        """
        body, ids = self._settings(request), request.token_ids
        controls = self._renderer.tools_of(request.tools).controls
        body["prompt"] = list(ids) if await self._reads_ids(body) else controls.broken(ids)
        try:
            text, finish = _completion(await self._post(body), request.stops)
        except RequestFailedError as failed:
            chat = (
                '; a service with chat endpoints only takes engine.api = "chat"'
                if failed.status == 404
                else ""
            )
            raise EngineError(f"engine 'openai': {failed}{chat}") from None
        return self._encoded(request, text, finish)

    async def _reads_ids(self, body: Mapping[str, Json]) -> bool:
        """Return True if the service decodes token ids to the same text; it is tried once, with a body like the others.

        Raises:
            ServiceDownError: The service is down, or refuses the key.
        """
        async with self._probing:
            if self._takes_ids is None:
                self._takes_ids = await self._probe(body)
                self._note(
                    "engine 'openai': the service gets token ids"
                    if self._takes_ids
                    else "engine 'openai': the service shows no sign of reading token ids as this tokenizer does, so it gets "
                    "text; special tokens that a tool's result or the data only spell are broken up in it"
                )
        return self._takes_ids

    async def _probe(self, body: Mapping[str, Json]) -> bool:
        ids = list(self._renderer.tokenizer.encode_plain(_PROBE))
        try:
            read = (await self._post({**body, "prompt": ids, "max_tokens": 1, "echo": True})).json()
        except RequestFailedError:
            return False
        choice = first_choice(read)
        text = None if choice is None else choice.get("text")
        return isinstance(text, str) and text.strip().startswith(_PROBE)


def _completion(answer: Answer, stops: Sequence[str]) -> tuple[str, Finish]:
    """The text of an answer, with the stop string at which it ended, and why it ended.

    Raises:
        RequestFailedError: The answer is not a completion.
    """
    choice = first_choice(answer.json())
    if choice is None:
        raise answer.malformed("expected choices with a text")
    # A filter of the service may withhold the text generated so far.
    text = (
        "" if choice.get("finish_reason") == FILTERED and choice.get("text") is None else choice.get("text")
    )
    if not isinstance(text, str):
        raise answer.malformed("expected choices with a text")
    return cut_at_stop(answer, choice, as_text(text), stops)
