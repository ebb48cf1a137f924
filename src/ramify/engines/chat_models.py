"""Chat models, which take text and give text, for summaries, judges and helpers: an endpoint, the policy, a function of the user's own."""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ramify.chat.renderer import ChatRenderer
from ramify.core.draws import stream
from ramify.core.errors import DataError, RamifyError
from ramify.core.messages import Message, Problem
from ramify.core.protocols import Engine, Json
from ramify.core.records import Finish, Request, TokenUsage
from ramify.core.tree import Node, Source, Trajectory
from ramify.engines.openai import FILTERED, as_text, bearer, first_choice
from ramify.engines.served_models import ServedModel
from ramify.files.user_code import check_signature, one_line
from ramify.net.client import HttpClient
from ramify.net.exchange import Answer
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import redact
from ramify.net.servers import Servers
from ramify.runtime.call_clock import queued
from ramify.runtime.daemon_threads import DaemonThreads

_THREADS = 32


class OpenAIChat:
    """Implements `ramify.core.protocols.ChatModel` with POST {base_url}/chat/completions."""

    def __init__(
        self,
        client: HttpClient,
        *,
        base_url: str | Sequence[str],
        model: str,
        key: str | None = None,
        extra: Mapping[str, Json] | None = None,
        whole: bool = False,
        served: ServedModel | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open no connection yet.

        Args:
            client: HTTP client for this service alone, with the key as one of its secrets.
            base_url: Address up to the version, such as "http://127.0.0.1:8000/v1", or those of several equal servers.
            model: Name of the model at the service.
            key: Key of the service, or None.
            extra: More fields for each request, such as {"top_p": 0.95}.
            whole: An answer that `max_tokens` cut is a failed request.
            served: Looks at each server before its first request; None: they are taken as they are.
            note: Gets a line when one of several servers does not answer, and when it is back.
        """
        self._client, self._model, self._key, self._whole = client, model, key, whole
        self._servers = Servers(base_url, check=served, note=note)
        self._extra = dict(extra or {})
        self._usage = TokenUsage()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model

    @property
    def usage(self) -> TokenUsage:
        """The use so far."""
        return replace(self._usage, retries=self._client.retries)

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """Return the answer's text, without the reasoning before it.

        Raises:
            RequestFailedError: This request failed, the model refused it, or the answer has no text, or is cut and must be whole.
            ServiceDownError: The service is down, or refuses the key.
            ConfigError: A server has another model.
        """
        body: dict[str, Json] = {
            **self._extra,
            "model": self._model,
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        answer = await self._client.post_json_to(
            self._servers, "/chat/completions", body, headers=bearer(self._key)
        )
        read = answer.json()
        if isinstance(read, Mapping):
            self._count(read.get("usage"))
        return _text(answer, read, self._whole)

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()

    def _count(self, usage: Json) -> None:
        counted = usage if isinstance(usage, Mapping) else {}
        self._usage = TokenUsage(
            self._usage.answers + 1,
            self._usage.prompt_tokens + _number(counted.get("prompt_tokens")),
            self._usage.completion_tokens + _number(counted.get("completion_tokens")),
        )


def _text(answer: Answer, read: Json, whole: bool) -> str:
    choice = first_choice(read)
    message = None if choice is None else choice.get("message")
    if choice is None or not isinstance(message, Mapping):
        raise answer.malformed("expected choices with a message")
    if message.get("refusal") or choice.get("finish_reason") == FILTERED:
        raise _no_text(answer, "the model refused to answer")
    if whole and choice.get("finish_reason") == "length":
        raise RequestFailedError(FailureKind.CUT, redact(f"{answer.where}: max_tokens cut it. Raise it."))
    text = after_thinking(content_text(message.get("content")))
    if text:
        return text
    if choice.get("finish_reason") == "length":
        raise _no_text(answer, "the model wrote no answer within max_tokens. Raise it.")
    reasoned = message.get("reasoning_content") or message.get("reasoning")
    raise _no_text(answer, f"the model wrote {'reasoning and ' if reasoned else ''}no text")


def content_text(content: Json) -> str:
    """Return the text of a message: a string, or the text parts of a list; "" for null."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "".join(part for part in parts if isinstance(part, str))


def after_thinking(content: str) -> str:
    """Return the text after the reasoning, if a server leaves that in; a template may have opened it in the prompt."""
    text = as_text(content).strip()
    opened = text.startswith("<think>")
    before, closed, after = text.partition("</think>")
    if closed and (opened or "<think>" not in before):
        return after.strip()
    return "" if opened else text


def _no_text(answer: Answer, detail: str) -> RequestFailedError:
    """Return the error of a model that gave no text. The service did its part, so its client does not count the request as failed."""
    return RequestFailedError(FailureKind.MALFORMED, redact(f"{answer.where}: {detail}"), answer.status)


def _number(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class PolicyChat:
    """Implements `core.protocols.ChatModel` with the engine that writes the trajectories.

    The draws of an answer are a hash of the request, so equal requests get equal answers, whenever they come. For a tool's
    deadline the time of an answer is time in a queue of ours, so nothing depends on how fast the engine is.
    """

    def __init__(self, engine: Engine, renderer: ChatRenderer, seed: int) -> None:
        """Whoever creates the engine closes it. Its tools are not shown."""
        self._engine, self._renderer, self._seed = engine, renderer, seed
        self._takes_system = _takes_system(renderer)
        self.usage = TokenUsage()

    @property
    def name(self) -> str:
        """The policy, with the version of its weights."""
        return f"policy {self._engine.info().policy_version}"

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """Return the answer's text, without the reasoning before it.

        Raises:
            RequestFailedError: The request does not fit the engine's context, or the answer was cut.
            EngineError: The engine failed.
        """
        prompt_messages = tuple(messages) if self._takes_system else _without_system(messages)
        problem = Problem("helper", prompt_messages, ())
        ids = self._renderer.render_prompt(problem, ())
        room = self._engine.info().context_tokens - len(ids)
        if room < 1:
            raise RequestFailedError(
                FailureKind.TOO_LARGE, f"the policy's context has no room for a request of {len(ids)} tokens"
            )
        prompt = Node("", (), None, Source.PROMPT, ids, self._renderer.decode(ids))
        request = Request(
            token_ids=ids,
            seed=stream(self._seed, "helper", ids),
            max_new_tokens=min(max_tokens, room),
            temperature=temperature,
            path=Trajectory(problem, (prompt,)),
        )
        with queued():
            done = await self._engine.generate(request)
        self.usage = TokenUsage(
            self.usage.answers + 1,
            self.usage.prompt_tokens + len(ids),
            self.usage.completion_tokens + len(done.token_ids),
        )
        if done.finish is Finish.LENGTH:
            raise RequestFailedError(FailureKind.CUT, f"{len(done.token_ids)} tokens did not suffice")
        written = done.token_ids[:-1] if done.finish is Finish.EOS else done.token_ids
        return after_thinking(self._renderer.decode(written))

    async def close(self) -> None:
        """Do nothing: the engine is somebody else's."""


def _takes_system(renderer: ChatRenderer) -> bool:
    """Return True if the chat template shows a system message."""
    tried = (Message.of("system", "ramify_system"), Message.of("user", "?"))
    try:
        return "ramify_system" in renderer.prompt_text(Problem("helper", tried, ()), ())
    except DataError:
        return False


def _without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the text of a system message put at the beginning of the next one."""
    first, *others = messages
    if first.role != "system":
        return tuple(messages)
    return (Message.of(others[0].role, f"{first.text}\n\n{others[0].text}"), *others[1:])


@dataclass(slots=True)
class OwnChat:
    """Implements `core.protocols.ChatModel` with a function of the user's own: `helper(messages, **args) -> str`.

    It gets a list of {"role", "content"}. It runs in a thread, an `async` one in an event loop of its own there.

    Attributes:
        function: The function.
        called: What messages call it.
        args: Its further arguments.
        file: Name and checksum of its file.

    Raises:
        ConfigError: `function` is no function, or cannot take its arguments.
    """

    function: Callable[..., Any]
    called: str
    args: Mapping[str, Any]
    file: str
    usage: TokenUsage = field(default_factory=TokenUsage, init=False)
    _threads: DaemonThreads = field(init=False)

    def __post_init__(self) -> None:
        self._threads = DaemonThreads(f"helper {self.called}", _THREADS)
        check_signature(self.function, f"helper {self.called}", self.called, ("messages",), self.args)

    @property
    def name(self) -> str:
        """All that an answer depends on besides the messages: answers are recorded under it."""
        return f"{self.file} {self.called} {json.dumps(self.args, sort_keys=True, default=str)}"

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """Return the function's answer.

        Raises:
            RequestFailedError: The function failed, or its answer is not text.
        """
        del max_tokens, temperature
        entries = [{"role": message.role, "content": message.text} for message in messages]
        answer = await self._threads.result(self._threads.submit(partial(self._answer, entries)))
        if not isinstance(answer, str):
            raise RequestFailedError(
                FailureKind.MALFORMED, f"{self.called}: expected text, got {type(answer).__name__}"
            )
        self.usage = TokenUsage(self.usage.answers + 1)
        return answer

    def _answer(self, entries: list[dict[str, str]]) -> object:
        """Call the function; an `async` one gets an event loop of its own, in this thread."""
        try:
            answer = self.function(entries, **self.args)
            return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
        except RamifyError:
            raise
        # Anybody's code: what it raises is a request that failed, also an exit or a cancellation, which are not ours here.
        except BaseException as error:  # noqa: BLE001
            raise RequestFailedError(FailureKind.MALFORMED, f"{self.called}: {one_line(error)}") from None

    async def close(self) -> None:
        """Do nothing: a function has no connections."""
