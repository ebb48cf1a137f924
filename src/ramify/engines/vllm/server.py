"""One vLLM server over HTTP: what it is asked, and how its answers are read.

Tested with vLLM 0.32 (`TESTED`; outside of that range a run warns). What it relies on, to be looked at with each release:

- POST /inference/v1/generate (server flag --enable-scale-out): `token_ids` and `sampling_params` in, `choices[0]` with
  `token_ids`, `finish_reason`, `logprobs.content[].{logprob, top_logprobs}` and `weight_versions[].{version, start, end}` out.
- Of `logprobs` = K it tells K entries, the sampled token among them: asked for one more, the K most likely are there.
- --logprobs-mode processed_logprobs: logprobs after the temperature. vLLM's default is before it. Those of a prompt
  (`prompt_logprobs`) are before it in either mode.
- `ignore_eos` with `stop_token_ids`: a turn ends at the end tokens of our tokenizer, whatever the server's files say.
- A stop string inside a token: the ids keep the whole token.
- A request that begins inside a character may be ended at once with "stop": the text that vLLM makes of it holds stop strings of
  the prompt. So whether a turn has ended is decided on our side.
- The routes of VLLM_SERVER_DEV_MODE=1: /server_info?config_format=json, /pause, /resume, /reset_prefix_cache,
  /collective_rpc with `reload_weights`, /update_weight_version, /weight_info, /sleep, /wake_up.
- `reload_weights` with tensors missing only warns. On a CPU a tied head keeps its old copy, unless the folder holds it under its
  own name. The publisher writes it, and its probe finds both faults.
- On a CPU, 0.32 dies when the prompt of a request with a seed is computed in two pieces (its generators have no offset):
  --no-enable-chunked-prefill.
- A `reload_weights` that fails may end the server's engine process, and then the server.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramify.core.errors import ConfigError, EngineError
from ramify.core.protocols import Json
from ramify.core.records import Floats
from ramify.net.client import Answer, HttpClient
from ramify.net.failures import FailureKind, RequestFailedError

TESTED = ((0, 32), (0, 32))
"""Oldest and newest release, both included, that the tests ran against."""

_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
"""Sampling without changes of the distribution; sent with each request, since a model's own defaults may differ."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself; None where it does not.

    Attributes:
        version: Of vLLM.
        model: Name under which it serves.
        context_tokens: Longest sequence.
        label: Label of its weights.
        dtype: Such as "float32".
        logprobs_mode: Such as "processed_logprobs".
        max_logprobs: Most logprobs for a token.
        splits_prompts_on_cpu: It runs on a CPU and computes long prompts in pieces.
    """

    version: str
    model: str
    context_tokens: int
    label: str
    dtype: str | None = None
    logprobs_mode: str | None = None
    max_logprobs: int | None = None
    splits_prompts_on_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for tokens: ids, what stops it, and how many of the most likely tokens are told with each (0: none)."""

    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    top_p: float
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """What a server wrote.

    Attributes:
        token_ids: New tokens. [N]
        logprobs: Their logprobs, nats. [N]
        tops: For each token the logprobs of the most likely ones, nats; empty if not asked for. [N][K]
        finish_reason: "stop" or "length".
        labels: (label of the weights, number of tokens) in order.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tops: tuple[tuple[float, ...], ...]
    finish_reason: str
    labels: tuple[tuple[str, int], ...]


class VllmServer:
    """Asks one server. Each request is tried once: what a failure means is the caller's business.

    Attributes:
        url: Its address.
    """

    def __init__(self, client: HttpClient, url: str, key: str | None = None) -> None:
        """Open no connection yet; `client` is for this server alone, with the key as one of its secrets."""
        self.url = url.rstrip("/")
        self._client = client
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._model = ""

    async def look(self, model: str | None) -> ServerInfo:
        """Ask what it is; from then on requests name the model that it serves.

        Args:
            model: Name of the model to ask for; None: the only one that it serves.

        Raises:
            ConfigError: It serves no such model.
            RequestFailedError: It does not answer, or not as vLLM does.
        """
        version = _text(await self._get("/version"), "version")
        models = await self._get("/v1/models")
        served = {_text(entry, "id"): entry for entry in _list(models, "data")}
        name = model if model is not None else next(iter(served), "")
        if name not in served:
            raise ConfigError(
                f"engine.model: {self.url} serves {', '.join(map(repr, served)) or 'no model'}, not {name!r}"
            )
        self._model = name
        context = _number(served[name], "max_model_len")
        try:
            config = (await self._get("/server_info", config_format="json")).get("vllm_config")
            label = _text(await self._get("/weight_info"), "weight_version")
        except RequestFailedError as failed:
            if failed.status != 404:
                raise
            return ServerInfo(version, name, context, "")  # no dev mode
        about = _part(config, "model_config")
        most = about.get("max_logprobs")
        chunks = _part(config, "scheduler_config").get("enable_chunked_prefill")
        device = str(_part(config, "device_config").get("device"))
        return ServerInfo(
            version,
            name,
            context,
            label,
            str(about.get("dtype", "")).removeprefix("torch.") or None,
            str(about.get("logprobs_mode", "")) or None,
            most if isinstance(most, int) else None,
            device == "cpu" and chunks is True,
        )

    async def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text by the server's own tokenizer."""
        body: dict[str, Json] = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return tuple(_ids(await self._post("/tokenize", body), "tokens"))

    async def generate(self, asked: Asked) -> Served:
        """Have it write tokens.

        Raises:
            EngineError: It refuses the request, or answers without ids, logprobs or versions.
            RequestFailedError: It failed, or was too slow.
        """
        sampling: dict[str, Json] = {
            **_PLAIN,
            "max_tokens": asked.max_tokens,
            "seed": asked.seed,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "stop": list(asked.stops),
            "stop_token_ids": list(asked.stop_ids),
            "logprobs": asked.top_k + 1 if asked.top_k else 0,
        }
        read, answer = await self._generate(asked.token_ids, sampling)
        return _served(read, answer, asked)

    async def prompt_logprobs(self, token_ids: Sequence[int]) -> Floats:
        """Logprob of each token after the first, at temperature 1, nats. [T] -> [T - 1]

        Raises:
            EngineError, RequestFailedError: As for `generate`.
        """
        sampling: dict[str, Json] = {**_PLAIN, "max_tokens": 1, "prompt_logprobs": 0}
        read, answer = await self._generate(tuple(token_ids), sampling)
        rows = read.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(token_ids):
            raise answer.malformed("expected prompt_logprobs for each token")
        entries = [
            row.get(str(i)) if isinstance(row, Mapping) else None
            for row, i in zip(rows, token_ids, strict=True)
        ]
        found = [entry.get("logprob") if isinstance(entry, Mapping) else None for entry in entries[1:]]
        values = [value for value in found if isinstance(value, float | int)]
        if len(values) != len(token_ids) - 1:
            raise answer.malformed("expected the logprob of each token of the prompt")
        return np.array(values, np.float64)

    async def _generate(
        self, token_ids: tuple[int, ...], sampling: Mapping[str, Json]
    ) -> tuple[Mapping[str, Json], Answer]:
        body: dict[str, Json] = {
            "model": self._model,
            "token_ids": list(token_ids),
            "sampling_params": dict(sampling),
        }
        try:
            answer = await self._client.post_json(
                f"{self.url}/inference/v1/generate", body, headers=self._headers
            )
        except RequestFailedError as failed:
            if failed.status in (403, 404):
                raise EngineError(
                    f"{failed.detail}: start the server with --enable-scale-out, which opens this route"
                ) from None
            if failed.kind is FailureKind.CLIENT:
                raise EngineError(
                    f"the server refuses a request of {len(token_ids)} tokens: {failed.detail}"
                ) from None
            raise
        read = _mapping(answer)
        usage = read.get("usage")
        seen = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        if seen != len(token_ids):
            raise answer.malformed(f"it read {seen} tokens of a prompt of {len(token_ids)}")
        return read, answer

    async def load(self, folder: Path, label: str) -> None:
        """Load the weights of a folder under a label. Requests in flight wait, and go on from their tokens with the new ones.

        Raises:
            RequestFailedError: It failed; it may have the old weights, new ones or some of both.
        """
        await self._post("/pause", None, mode="keep")
        try:
            arguments: dict[str, Json] = {"weights_path": str(folder)}
            await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
            # Without the running requests their blocks would stay, and be found by new ones.
            cleared = await self._post("/reset_prefix_cache", None, reset_running_requests="true")
            if cleared.get("success") is False:
                raise RequestFailedError(FailureKind.SERVER, f"{self.url}: the prefix cache was not cleared")
            await self._post("/update_weight_version", {"new_version": label})
        finally:
            await self._post("/resume", None)

    async def sleep(self) -> None:
        """Hand back its memory: the weights are gone, `wake` and `load` bring it back."""
        await self._post("/sleep", None, level="2")

    async def wake(self) -> None:
        """Take its memory again."""
        await self._post("/wake_up", None)

    async def label(self) -> str:
        """Label of its weights; "" without dev mode."""
        try:
            return _text(await self._get("/weight_info"), "weight_version")
        except RequestFailedError as failed:
            if failed.status == 404:
                return ""
            raise

    async def health(self) -> None:
        """Return if it is healthy.

        Raises:
            RequestFailedError: It is not.
        """
        await self._client.get(f"{self.url}/health", headers=self._headers)

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()

    async def _get(self, path: str, **params: str) -> Mapping[str, Json]:
        return _mapping(await self._client.get(f"{self.url}{path}", params=params, headers=self._headers))

    async def _post(self, path: str, body: Json, **params: str) -> Mapping[str, Json]:
        answer = await self._client.post_json(f"{self.url}{path}", body, params=params, headers=self._headers)
        return _mapping(answer) if answer.body else {}


def _served(read: Mapping[str, Json], answer: Answer, asked: Asked) -> Served:
    choices = _list(read, "choices", answer)
    choice = choices[0] if choices and isinstance(choices[0], Mapping) else {}
    ids = tuple(_ids(choice, "token_ids", answer))
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        # "abort": the server dropped it, as a restart or somebody else's pause does.
        raise RequestFailedError(FailureKind.SERVER, f"{answer.where}: finish_reason {reason!r}")
    logprobs = choice.get("logprobs")
    content = _list(logprobs, "content", answer) if isinstance(logprobs, Mapping) else []
    told = [entry for entry in content if isinstance(entry, Mapping)]
    if (
        not ids
        or len(told) != len(ids)
        or any(e.get("token_id") != i for e, i in zip(told, ids, strict=True))
    ):
        raise answer.malformed(f"expected a logprob for each of {len(ids)} tokens, found {len(told)}")
    tops = tuple(_tops(entry, asked.top_k, answer) for entry in told) if asked.top_k else ()
    return Served(
        ids, tuple(_logprob(e, answer) for e in told), tops, reason, _labels(choice, len(ids), answer)
    )


def _tops(entry: Mapping[str, Json], most: int, answer: Answer) -> tuple[float, ...]:
    """Logprobs of the `most` most likely tokens; one more entry is there, for the sampled token or the next likely one."""
    found = [top for top in _list(entry, "top_logprobs", answer) if isinstance(top, Mapping)]
    ranked = {top.get("token_id"): _logprob(top, answer) for top in found}
    if len(ranked) < most:
        raise answer.malformed(f"expected the logprobs of {most} tokens, found {len(ranked)}")
    return tuple(sorted(ranked.values(), reverse=True)[:most])


def _logprob(entry: Mapping[str, Json], answer: Answer) -> float:
    value = entry.get("logprob")
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise answer.malformed("expected a logprob that is a number")
    # Rounding can give a token of probability 1 a little more than that.
    return min(float(value), 0.0) if math.isfinite(value) else float(value)


def _labels(choice: Mapping[str, Json], size: int, answer: Answer) -> tuple[tuple[str, int], ...]:
    spans = [span for span in _list(choice, "weight_versions", answer) if isinstance(span, Mapping)]
    labels = tuple((_text(span, "version"), _number(span, "end") - _number(span, "start")) for span in spans)
    if sum(count for _, count in labels) != size:
        raise answer.malformed(f"expected weight_versions of {size} tokens")
    return labels


def _mapping(answer: Answer) -> Mapping[str, Json]:
    read = answer.json()
    if not isinstance(read, Mapping):
        raise answer.malformed("expected an object")
    return read


def _part(read: Json, key: str) -> Mapping[str, Json]:
    found = read.get(key) if isinstance(read, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _wrong(key: str, answer: Answer | None) -> RequestFailedError:
    if answer is not None:
        return answer.malformed(f"expected {key}")
    return RequestFailedError(FailureKind.MALFORMED, f"expected {key}: is this a vLLM server?")


def _list(read: Json, key: str, answer: Answer | None = None) -> Sequence[Json]:
    found = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(found, list):
        raise _wrong(key, answer)
    return found


def _ids(read: Json, key: str, answer: Answer | None = None) -> list[int]:
    found = _list(read, key, answer)
    ids = [i for i in found if isinstance(i, int) and not isinstance(i, bool)]
    if len(ids) != len(found):
        raise _wrong(key, answer)
    return ids


def _text(read: Json, key: str) -> str:
    found = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(found, str):
        raise _wrong(key, None)
    return found


def _number(read: Json, key: str) -> int:
    found = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(found, int):
        raise _wrong(key, None)
    return found
