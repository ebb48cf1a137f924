"""Engines that ask a service for text: for evaluation and making data, never for training.

`TextService` is what they have in common. The returned text is encoded with our tokenizer, which need not give the tokens that
the model sampled. So these engines say `exact_ids = false`, their nodes carry that, and the learner refuses them.

`OpenAIEngine` uses POST {base_url}/completions; `engines/openai_chat.py` has the one that asks chat endpoints. The context is
sent as token ids if a probe shows that the service reads them as we do (`_PROBE`). Otherwise it is sent as text, in which the
service recognises special tokens by their spelling; so special tokens that are only spelled out, by a web page or a data set,
are broken up first. Untested on real services.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, NotRequired, TypedDict, TypeVar, Unpack

from ramify.chat.renderer import ChatRenderer
from ramify.core.errors import ConfigError, EngineError
from ramify.core.protocols import Json
from ramify.core.records import NO_FILTERS, Completion, EngineInfo, Finish, Floats, Request
from ramify.engines.served_models import ServedModel, defaults_note, filter_fields
from ramify.net.client import HttpClient
from ramify.net.exchange import Answer
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.servers import Servers

Value = TypeVar("Value")

FILTERED = "content_filter"
"""Finish reason of a turn that the service's filter stopped; the turn counts as ended there."""
FILTER_ADVICE = tuple(
    (rf"\b{name}\b", f"remove sampling.{name}, or use a server that takes it, such as vLLM")
    for name in ("top_p", "top_k", "min_p", "repetition_penalty")
)
"""What to do about a refusal that names a filter."""
_FAILURE_ADVICE = {
    FailureKind.TOO_MANY: "Lower engine.slots or engine.http.requests_per_second, then resume.",
    FailureKind.SERVER: "Look at the service's log, then resume; engine.http.attempts asks it more often.",
    FailureKind.TIMEOUT: "Raise engine.http.timeout_seconds or lower engine.slots, then resume.",
    FailureKind.CONNECTION: "Check engine.url and that the service runs, then resume.",
}
_ALL_TOKENS = -1
"""`top_k` for no limit, in vLLM and SGLang."""
_MOST_ANSWERS = 3
"""One malformed answer in a long run should not end it, a service that gives no other should."""
_SEED_BITS = (1 << 31) - 1
"""Bits of a seed that every service accepts."""
_PROBE = "Paris, 12 plus 30 is 42; caf\u00e9 \u4e2d\u6587 (x < y)"
"""If a service echoes this text for our tokenizer's ids of it, it reads ids, with the same meaning as our tokenizer."""


class Service(TypedDict):
    """A service and how it is used.

    Attributes:
        base_url: Address up to the version, such as "http://127.0.0.1:8000/v1", or those of several equal servers.
        model: Name of the model at the service.
        context_tokens: Longest context, prompt and response together.
        slots: Trajectories at a time.
        key: Key of the service, or None.
        note: Called with a line for each thing that is found out about the service.
        served: Looks at each server before its first request; None: they are taken as they are.
    """

    base_url: str | Sequence[str]
    model: str
    context_tokens: int
    slots: int
    key: NotRequired[str | None]
    note: Callable[[str], None]
    served: NotRequired[ServedModel | None]


class TextService:
    """The part of `core.protocols.Engine` that does not depend on how the service is asked."""

    _endpoint: ClassVar[str]
    """What follows the address up to the version."""

    def __init__(self, client: HttpClient, renderer: ChatRenderer, **service: Unpack[Service]) -> None:
        """Open no connection yet.

        Args:
            client: HTTP client for this service alone, with the key as one of its secrets.
            renderer: Renders prompts and counts tokens, with the model's tokenizer or a similar one.
            **service: The service.
        """
        self._client, self._renderer, self._note = client, renderer, service["note"]
        self._served = service.get("served")
        self._servers = Servers(
            service["base_url"],
            check=self._served,
            note=lambda line: self._note(f"engine 'openai': {line}"),
        )
        self._opening = asyncio.Lock()
        self._is_open = self._served is None
        self._model, self._key = service["model"], service.get("key")
        tokenizer = renderer.tokenizer
        self._info = EngineInfo(
            "openai",
            tokenizer.vocab_size,
            service["context_tokens"],
            service["slots"],
            exact_entropy=False,
            policy_version=0,
            tokenizer=tokenizer.fingerprint,
            exact_ids=False,
        )

    def _settings(self, request: Request) -> dict[str, Json]:
        """Return the fields of a request that both kinds of endpoint have.

        Raises:
            EngineError: Entropies are asked for.
        """
        if request.entropy_first_k:
            raise EngineError("engine 'openai' shows text only: no entropies, so nothing can branch on them")
        return {
            "model": self._model,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "stop": list(request.stops),
            "seed": request.seed & _SEED_BITS,
            **self._filters(request),
        }

    def _filters(self, request: Request) -> dict[str, Json]:
        """Return the filters that act; all of them for servers that would fill in their own for those that are left out."""
        fields = filter_fields(request.filters, _ALL_TOKENS)
        if self._served is not None and self._served.takes_filters:
            return fields
        neutral = filter_fields(NO_FILTERS, _ALL_TOKENS)
        return {name: value for name, value in fields.items() if value != neutral[name]}

    async def _open(self, request: Request) -> None:
        """Look at the servers, once.

        Raises:
            ConfigError: One of them serves another model.
        """
        async with self._opening:
            if not self._is_open and self._served is not None:
                await self._client.check(self._servers)
                self._is_open = True
                if note := defaults_note(self._served.takes_filters, request.filters):
                    self._note(note)

    async def _answer(
        self, body: Mapping[str, Json], request: Request, read: Callable[[Answer], Value]
    ) -> Value:
        """Return what `read` makes of the answer; a service that gives a malformed one is asked again.

        Raises:
            RequestFailedError: The request failed for good, or each of `_MOST_ANSWERS` answers is malformed.
            ServiceDownError: The service is down, or refuses the key.
        """
        left = _MOST_ANSWERS
        while True:
            try:
                return read(await self._post(body, request))
            except RequestFailedError as failed:
                left -= 1
                if failed.kind is not FailureKind.MALFORMED or not left:
                    raise

    async def _post(self, body: Mapping[str, Json], request: Request) -> Answer:
        # Later turns of a trajectory, and the other attempts at its problem, begin with tokens that a server has cached.
        preferred = request.priority[0] if request.priority else None
        return await self._client.post_json_to(
            self._servers, f"/{self._endpoint}", body, headers=bearer(self._key), preferred=preferred
        )

    def _encoded(self, request: Request, text: str, finish: Finish) -> Completion:
        """Return the text in our tokens, and the end of turn if it ended; special tokens that the text spells stay text."""
        ids = self._renderer.insert(text, request.tools)
        if finish is Finish.EOS or not ids:
            ids, finish = (*ids, self._renderer.tokenizer.eos_id), Finish.EOS
        if len(ids) > request.max_new_tokens:
            # Our tokens are smaller than the model's: by our count the budget is spent.
            ids, finish = ids[: request.max_new_tokens], Finish.LENGTH
        return Completion(ids, (0.0,) * len(ids), (), finish, ((0, len(ids)),))

    async def score(self, token_ids: Sequence[int]) -> Floats:  # noqa: ARG002
        """Always fails, because a service returns text.

        Raises:
            EngineError: Always.
        """
        raise EngineError("engine 'openai' cannot score tokens. Use another engine.")

    async def load_weights(self, version: int) -> None:
        """Always fails, because a service has weights of its own.

        Raises:
            EngineError: Always.
        """
        raise EngineError(f"engine 'openai' takes no weights (version {version}). Train with another engine.")

    async def sleep(self) -> None:
        """Do nothing: a service has memory of its own."""

    def info(self) -> EngineInfo:
        """Return the engine's capabilities."""
        return self._info

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()


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
            ConfigError: A server has another model, or refuses a key of [sampling].
        """
        await self._open(request)
        body, ids = self._settings(request), request.token_ids
        controls = self._renderer.tools_of(request.tools).controls
        try:
            body["prompt"] = list(ids) if await self._reads_ids(body, request) else controls.broken(ids)
            text, finish = await self._answer(body, request, partial(_completion, stops=request.stops))
        except RequestFailedError as failed:
            refusal = failed.detail.partition(": ")[2] if failed.status in (400, 422) else ""
            for words, advice in FILTER_ADVICE:
                if re.search(words, refusal):
                    raise ConfigError(f"engine 'openai': {failed}; {advice}") from None
            if failed.status == 404:
                raise EngineError(
                    f"engine 'openai': {failed}; a service with chat endpoints only takes engine.api = \"chat\""
                ) from None
            raise as_engine_error(failed) from None
        return self._encoded(request, text, finish)

    async def _reads_ids(self, body: Mapping[str, Json], request: Request) -> bool:
        """Return True if the service decodes token ids to the same text; it is tried once, with a body like the others.

        Raises:
            RequestFailedError: The service is away or too busy to say.
            ServiceDownError: The service is down, or refuses the key.
        """
        async with self._probing:
            if self._takes_ids is None:
                self._takes_ids = await self._probe(body, request)
                self._note(
                    "engine 'openai': the service gets token ids"
                    if self._takes_ids
                    else "engine 'openai': the service shows no sign of reading token ids as this tokenizer does, so it gets "
                    "text; special tokens that a tool's result or the data only spell are broken up in it"
                )
        return self._takes_ids

    async def _probe(self, body: Mapping[str, Json], request: Request) -> bool:
        ids = list(self._renderer.tokenizer.encode_plain(_PROBE))
        try:
            probe: dict[str, Json] = {**body, "prompt": ids, "max_tokens": 1, "echo": True}
            read = (await self._post(probe, request)).json()
        except RequestFailedError as failed:
            # Else all of a run would get text because its first request came too early.
            if failed.is_outage:
                raise
            return False
        choice = first_choice(read)
        text = None if choice is None else choice.get("text")
        return isinstance(text, str) and text.strip().startswith(_PROBE)


def as_engine_error(failed: RequestFailedError) -> EngineError:
    """Return the engine's error for a failed request, with what to do about its kind."""
    advice = _FAILURE_ADVICE.get(failed.kind)
    return EngineError(f"engine 'openai': {failed}" + (f". {advice}" if advice else ""))


def _completion(answer: Answer, stops: Sequence[str]) -> tuple[str, Finish]:
    """Return the text of an answer, with the stop string at which it ended, and why it ended.

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


def cut_at_stop(
    answer: Answer, choice: Mapping[str, Json], text: str, stops: Sequence[str], sent: bool = True
) -> tuple[str, Finish]:
    """Return the text of an answer, with the stop string at which it ended, and why it ended.

    Args:
        answer: The answer, for messages.
        choice: The answer's choice, which says why it ended.
        text: Its text.
        stops: Strings that end a turn.
        sent: Whether the service was told of them: it cuts off the one at which it stopped.

    Raises:
        RequestFailedError: The choice does not say why it ended.
    """
    reason = choice.get("finish_reason")
    if reason == "length":
        return text, Finish.LENGTH
    if reason == FILTERED:
        return text, Finish.EOS
    if reason != "stop":
        raise answer.malformed(f"finish_reason {reason!r}, expected stop or length")
    first = min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if first is not None:
        return text[: first[0] + len(first[1])], Finish.STOP
    if not sent:
        return text, Finish.EOS
    stop = choice["stop_reason"] if "stop_reason" in choice else _left_open(text, stops)
    return (text + stop, Finish.STOP) if isinstance(stop, str) and stop in stops else (text, Finish.EOS)


def _left_open(text: str, stops: Sequence[str]) -> str | None:
    """Return the stop string that closes the tag opened last; None: no tag is open, so the turn ended by itself.

    Services cut the stop string off. vLLM says which one it was (`stop_reason`); for others it is inferred this way.
    """
    opened = [
        (text.rfind(f"<{stop[2:-1]}>"), stop)
        for stop in stops
        if stop.startswith("</") and f"<{stop[2:-1]}>" in text
    ]
    return max(opened)[1] if opened else None


def first_choice(read: Json) -> Mapping[str, Json] | None:
    """Return the first choice of an answer's JSON; None if there is none."""
    choices = read.get("choices") if isinstance(read, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, Mapping) else None


def as_text(text: str) -> str:
    """Return a text without lone surrogates, which are valid JSON but not valid text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def bearer(key: str | None) -> dict[str, str]:
    """Return the header with a service's key."""
    return {} if key is None else {"authorization": f"Bearer {key}"}
