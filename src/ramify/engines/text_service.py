"""What engines have in common that ask a service for text: for evaluation and making data, never for training.

The returned text is encoded with our tokenizer, which need not give the tokens that the model sampled. So these engines say
`exact_ids = false`, their nodes carry that, and the learner refuses them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NotRequired, TypedDict, Unpack

from ramify.chat.renderer import ChatRenderer
from ramify.core.errors import EngineError
from ramify.core.protocols import Json
from ramify.core.records import Completion, EngineInfo, Finish, Floats, Request
from ramify.net.client import Answer, HttpClient

FILTERED = "content_filter"
"""Finish reason of a turn that the service's filter stopped; the turn counts as ended there."""
_SEED_BITS = (1 << 31) - 1
"""Bits of a seed that every service accepts."""


class Service(TypedDict):
    """A service and how it is used.

    Attributes:
        base_url: Address up to the version, such as "http://127.0.0.1:8000/v1".
        model: Name of the model at the service.
        context_tokens: Longest context, prompt and response together.
        slots: Trajectories at a time.
        key: Key of the service, or None.
        note: Called with a line for each thing that is found out about the service.
    """

    base_url: str
    model: str
    context_tokens: int
    slots: int
    key: NotRequired[str | None]
    note: Callable[[str], None]


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
        self._url = f"{service['base_url'].rstrip('/')}/{self._endpoint}"
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
        """The fields of a request that both kinds of endpoint have.

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
            **({"top_p": request.top_p} if request.top_p < 1 else {}),
        }

    async def _post(self, body: Mapping[str, Json]) -> Answer:
        return await self._client.post_json(self._url, body, headers=bearer(self._key))

    def _encoded(self, request: Request, text: str, finish: Finish) -> Completion:
        """The text in our tokens, and the end of turn if it ended; special tokens that the text spells stay text."""
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
        raise EngineError("engine 'openai' cannot score tokens; use another engine")

    async def load_weights(self, version: int) -> None:
        """Always fails, because a service has weights of its own.

        Raises:
            EngineError: Always.
        """
        raise EngineError(f"engine 'openai' takes no weights (version {version}); train with another engine")

    async def sleep(self) -> None:
        """Nothing: a service has memory of its own."""

    def info(self) -> EngineInfo:
        """Return the engine's capabilities."""
        return self._info

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()


def cut_at_stop(
    answer: Answer, choice: Mapping[str, Json], text: str, stops: Sequence[str], sent: bool = True
) -> tuple[str, Finish]:
    """The text of an answer, with the stop string at which it ended, and why it ended.

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
    """The stop string that closes the tag opened last; None: no tag is open, so the turn ended by itself.

    Services cut the stop string off. vLLM says which one it was (`stop_reason`); for others it is inferred this way.
    """
    opened = [
        (text.rfind(f"<{stop[2:-1]}>"), stop)
        for stop in stops
        if stop.startswith("</") and f"<{stop[2:-1]}>" in text
    ]
    return max(opened)[1] if opened else None


def first_choice(read: Json) -> Mapping[str, Json] | None:
    """The first choice of an answer's JSON; None if there is none."""
    choices = read.get("choices") if isinstance(read, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, Mapping) else None


def as_text(text: str) -> str:
    """A text without lone surrogates, which are valid JSON but not valid text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def bearer(key: str | None) -> dict[str, str]:
    """The header with a service's key."""
    return {} if key is None else {"authorization": f"Bearer {key}"}
