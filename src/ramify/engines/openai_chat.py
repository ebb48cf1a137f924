"""A chat model behind any OpenAI-compatible endpoint: text in, text out, for summaries, judges and helpers."""

from collections.abc import Mapping, Sequence

from ramify.core.messages import Message
from ramify.core.protocols import Json
from ramify.core.records import TokenUsage
from ramify.net.client import Answer, HttpClient
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import redact


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
    ) -> None:
        """Open no connection yet.

        Args:
            client: HTTP client for this service alone, with the key as one of its secrets.
            base_url: Address up to the version, such as "http://127.0.0.1:8000/v1".
            model: Name of the model at the service.
            key: Key of the service, or None.
            extra: More fields for each request, such as {"top_p": 0.95}.
        """
        self._client, self._model, self._key = client, model, key
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
            RequestFailedError: This request failed, the model refused it, or the answer has no text.
            ServiceDownError: The service is down, or refuses the key.
        """
        body: dict[str, Json] = {
            **self._extra,
            "model": self._model,
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        answer = await self._client.post_json(self._url, body, headers=headers)
        read = answer.json()
        if isinstance(read, Mapping):
            self._count(read.get("usage"))
        return _text(answer, read)

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


def _text(answer: Answer, read: Json) -> str:
    choices = read.get("choices") if isinstance(read, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        raise answer.malformed("expected choices with a message")
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        raise _said_nothing(answer, "the model refused to answer")
    text = _after_thinking(_content(message.get("content")))
    if not text:
        raise _no_text(answer, choice, message)
    return text


def _content(content: Json) -> str:
    """The text of a message: a string, or the text parts of a list; "" for null."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "".join(part for part in parts if isinstance(part, str))


def _after_thinking(content: str) -> str:
    """The text after the reasoning, if a server leaves that in; a template may have opened it in the prompt."""
    text = content.encode("utf-8", "replace").decode("utf-8").strip()
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
