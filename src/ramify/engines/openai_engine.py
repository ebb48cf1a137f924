"""A text engine behind any OpenAI-compatible endpoint, for evaluation and the making of data, never for training.

It asks POST {base_url}/completions with the context as text, since chat endpoints cannot go on in the middle of an assistant's
message. The tokens that come back are those of our tokenizer for the text that came back, which need not be those that the model
sampled: the engine says `exact_ids = false`, its nodes carry that, and the learner refuses them. Untested on real services.
"""

from collections.abc import Mapping, Sequence

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.protocols import Json
from ramify.core.records import Completion, EngineInfo, Finish, Request
from ramify.net.client import Answer, HttpClient
from ramify.net.failures import RequestFailedError

_FILTERED = "content_filter"
"""How a turn ends that the service does not want to go on with: it counts as ended there."""
_SEED_BITS = (1 << 31) - 1
"""What every service takes for a seed."""


class OpenAIEngine:
    """Implements `core.protocols.Engine`, as far as a service that shows text can."""

    def __init__(
        self,
        client: HttpClient,
        tokenizer: ChatTokenizer,
        *,
        base_url: str,
        model: str,
        context_tokens: int,
        slots: int,
        key: str | None = None,
    ) -> None:
        """Open no connection yet.

        Args:
            client: For this service alone; it knows the key as one of its secrets.
            tokenizer: Of the model, or of one like it: it renders prompts and counts tokens.
            base_url: Up to the version, such as "http://127.0.0.1:8000/v1".
            model: As the service calls it.
            context_tokens: Longest context, prompt and response.
            slots: Trajectories at one time.
            key: Of the service, or None.
        """
        self._client, self._tokenizer = client, tokenizer
        self._url = f"{base_url.rstrip('/')}/completions"
        self._model, self._key = model, key
        self._info = EngineInfo(
            "openai",
            tokenizer.vocab_size,
            context_tokens,
            slots,
            exact_entropy=False,
            policy_version=0,
            tokenizer=tokenizer.fingerprint,
            exact_ids=False,
        )

    async def generate(self, request: Request) -> Completion:
        """Go on from the request's ids, as text. Logprobs are not known: they are 0.

        Raises:
            EngineError: The request failed for good; entropies are asked for; the answer is no completion.
            ServiceDownError: The service is down, or refuses the key.
        """
        if request.entropy_first_k:
            raise EngineError("engine 'openai' shows text only: no entropies, so nothing can branch on them")
        body: dict[str, Json] = {
            "model": self._model,
            "prompt": self._tokenizer.decode(request.token_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "stop": list(request.stops),
            "seed": request.seed & _SEED_BITS,
            **({"top_p": request.top_p} if request.top_p < 1 else {}),
        }
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        try:
            answer = await self._client.post_json(self._url, body, headers=headers)
            text, finish = _completion(answer, request.stops)
        except RequestFailedError as failed:
            raise EngineError(f"engine 'openai': {failed}") from None
        return self._encoded(text, finish, request.max_new_tokens)

    async def load_weights(self, source: str, version: int) -> None:
        """A service's weights are its own.

        Raises:
            EngineError: Always.
        """
        raise EngineError(
            f"engine 'openai' takes no weights (from {source}, version {version}); train with another engine"
        )

    def info(self) -> EngineInfo:
        """What it can do."""
        return self._info

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()

    def _encoded(self, text: str, finish: Finish, most: int) -> Completion:
        """The text in our tokens, an end of turn among them."""
        ids = self._tokenizer.encode(text)
        if finish is Finish.EOS or not ids:
            ids, finish = (*ids, self._tokenizer.eos_id), Finish.EOS
        if len(ids) > most:
            # Our tokens are smaller than the model's: by our count the budget is spent.
            ids, finish = ids[:most], Finish.LENGTH
        return Completion(ids, (0.0,) * len(ids), (), finish, ((0, len(ids)),))


def _completion(answer: Answer, stops: Sequence[str]) -> tuple[str, Finish]:
    """The text of an answer, with the stop string at which it ended, and why it ended.

    Raises:
        RequestFailedError: The answer is no completion.
    """
    read = answer.json()
    choices = read.get("choices") if isinstance(read, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping):
        raise answer.malformed("expected choices with a text")
    reason = choice.get("finish_reason")
    # A filter of the service may withhold what was written so far.
    text = "" if reason == _FILTERED and choice.get("text") is None else choice.get("text")
    if not isinstance(text, str):
        raise answer.malformed("expected choices with a text")
    # A half of a surrogate pair is valid JSON and no text.
    text = text.encode("utf-8", "replace").decode("utf-8")
    if reason == "length":
        return text, Finish.LENGTH
    if reason == _FILTERED:
        return text, Finish.EOS
    if reason != "stop":
        raise answer.malformed(f"finish_reason {reason!r}, expected stop or length")
    first = min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if first is not None:
        return text[: first[0] + len(first[1])], Finish.STOP
    stop = choice["stop_reason"] if "stop_reason" in choice else _left_open(text, stops)
    return (text + stop, Finish.STOP) if isinstance(stop, str) and stop in stops else (text, Finish.EOS)


def _left_open(text: str, stops: Sequence[str]) -> str | None:
    """The stop string that closes the tag that was opened last; None: nothing is open, the turn ended by itself.

    Services cut the stop string off. vLLM says which one it was (`stop_reason`); of the others it is found out so.
    """
    opened = [
        (text.rfind(f"<{stop[2:-1]}>"), stop)
        for stop in stops
        if stop.startswith("</") and f"<{stop[2:-1]}>" in text
    ]
    return max(opened)[1] if opened else None
