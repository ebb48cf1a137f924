"""One vLLM server over HTTP: its routes.

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
  /collective_rpc with `reload_weights`, /update_weight_version, /weight_info, /sleep, /wake_up, /is_sleeping.
- /is_sleeping is true of a paused server too, and /wake_up ends a pause. On a CPU /sleep and /wake_up change that answer and no memory.
- `reload_weights` with tensors missing only warns. On a CPU a tied head keeps its old copy, unless the folder holds it under its
  own name. The publisher writes it, and its probe finds both faults.
- On a CPU, 0.32 dies when the prompt of a request with a seed is computed in two pieces (its generators have no offset):
  --no-enable-chunked-prefill.
- /init_weight_transfer_engine, /shutdown_weight_transfer_engine, /start_weight_update, /update_weights, /finish_weight_update,
  /get_world_size; /weight_checker, whose checksums are SHA-256 over each parameter as the worker holds it. Started with
  --weight-transfer-config; the first of them answer 500 without it.
- A `reload_weights` that fails may end the server's engine process, and then the server.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramify.core.errors import ConfigError, EngineError
from ramify.core.protocols import Json
from ramify.core.records import NO_FILTERS, Floats
from ramify.engines.served_models import filter_fields
from ramify.engines.vllm.answers import (
    GenerateRequest,
    GenerateResponse,
    as_mapping,
    id_list,
    listed,
    max_answer_bytes,
    number_of,
    part_of,
    read_generated,
    read_prompt_logprobs,
    text_of,
)
from ramify.net.client import HttpClient
from ramify.net.exchange import Answer
from ramify.net.failures import FailureKind, RequestFailedError

TESTED = ((0, 32), (0, 32))
"""Oldest and newest release, both included, that the tests ran against."""

CHANGE_SECONDS = 60.0
"""A server that takes longer to pause, resume, sleep, wake, clear its cache or take a label hangs; a busy one takes seconds."""
_LEAST_TRANSFER_SECONDS, _BYTES_A_SECOND = 120.0, 25e6
"""Weights that come slower hang. vLLM on a busy CPU took 50 MB a second, over a folder and over gloo."""
_MAX_CHECKSUMS = 100_000_000
"""Bytes of checksums; of each of a thousand parameters of a worker there are 150."""
_MAX_NAMES = 5
"""Models that a message lists."""
_PLAIN = {
    **filter_fields(NO_FILTERS),
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
"""Sampling without changes of the distribution; sent with each request, since a model's own defaults may differ."""


def transfer_seconds(size: int) -> float:
    """Return how long a server may take to load `size` bytes of weights, or to compute their checksums."""
    return _LEAST_TRANSFER_SECONDS + size / _BYTES_A_SECOND


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
        can_sleep: It was started with --enable-sleep-mode.
    """

    version: str
    model: str
    context_tokens: int
    label: str
    dtype: str | None = None
    logprobs_mode: str | None = None
    max_logprobs: int | None = None
    splits_prompts_on_cpu: bool = False
    can_sleep: bool | None = None


class VllmServer:
    """The client of one server. Each request is tried once: the caller decides what a failure means.

    Attributes:
        url: Its address; of a server behind a Unix socket the host is its name.
    """

    def __init__(self, client: HttpClient, url: str, vocab_size: int, key: str | None = None) -> None:
        """Open no connection yet.

        Args:
            client: A client for this server alone, with the key as one of its secrets.
            url: Its address.
            vocab_size: Rows of the model's head; no token id is as large.
            key: Sent with every request.
        """
        self.url = url.rstrip("/")
        self._client, self._vocab_size = client, vocab_size
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._model = ""

    async def look(self, model: str | None) -> ServerInfo:
        """Return what it says about itself; from then on requests name the model that it serves.

        Args:
            model: Name of the model to ask for; None: the only one that it serves.

        Raises:
            ConfigError: It serves no such model.
            RequestFailedError: It does not answer, or not as vLLM does.
        """
        about, answer = await self._get("/version")
        version = text_of(about, "version", answer)
        models, answer = await self._get("/v1/models")
        served = {text_of(entry, "id", answer): entry for entry in listed(models, "data", answer)}
        name = model if model is not None else next(iter(served), "")
        if name not in served:
            names = ", ".join(map(repr, list(served)[:_MAX_NAMES])) or "no model"
            raise ConfigError(
                f"engine.model: {self.url} serves {names}, not {name!r}. Name a model that it serves, or another server."
            )
        self._model = name
        context = number_of(served[name], "max_model_len", answer)
        try:
            about, answer = await self._get("/server_info", config_format="json")
            label = await self._label()
        except RequestFailedError as failed:
            if failed.status != 404:
                raise
            return ServerInfo(version, name, context, "")  # no dev mode
        return _described(ServerInfo(version, name, context, label), about.get("vllm_config"), answer)

    async def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text by the server's own tokenizer."""
        body: dict[str, Json] = {"model": self._model, "prompt": text, "add_special_tokens": False}
        read, answer = await self._post("/tokenize", body)
        return tuple(id_list(read, "tokens", answer, self._vocab_size))

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Have it write tokens.

        Raises:
            EngineError: It refuses the request.
            RequestFailedError: It failed, was too slow, or its answer is none to this request.
        """
        sampling: dict[str, Json] = {
            **_PLAIN,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "temperature": request.temperature,
            **filter_fields(request.filters),
            "stop": list(request.stops),
            "stop_token_ids": list(request.stop_ids),
            "logprobs": request.top_k + 1 if request.top_k else 0,
        }
        limit = max_answer_bytes(request.max_tokens, request.top_k)
        read, answer = await self._generate(request.token_ids, sampling, limit)
        return read_generated(answer, request, self._vocab_size, read)

    async def prompt_logprobs(self, token_ids: Sequence[int]) -> Floats:
        """Return the logprob of each token after the first, at temperature 1, nats. [T] -> [T - 1]

        Raises:
            EngineError, RequestFailedError: As for `generate`.
        """
        sampling: dict[str, Json] = {**_PLAIN, "max_tokens": 1, "prompt_logprobs": 0}
        limit = max_answer_bytes(len(token_ids), 0)
        read, answer = await self._generate(tuple(token_ids), sampling, limit)
        return np.array(read_prompt_logprobs(read, answer, token_ids), np.float64)

    async def _generate(
        self, token_ids: tuple[int, ...], sampling: Mapping[str, Json], max_bytes: int
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
        read = as_mapping(answer, max_bytes)
        size = number_of(part_of(read, "usage"), "prompt_tokens", answer)
        if size != len(token_ids):
            raise answer.malformed(f"it read {size} tokens of a prompt of {len(token_ids)}")
        return read, answer

    async def load(self, folder: Path, label: str, seconds: float) -> None:
        """Load the weights of a folder under a label. Requests in flight wait, and go on from their tokens with the new ones.

        Raises:
            RequestFailedError: It failed, or took more than `seconds`; it may have the old weights, new ones or some of both.
        """
        async with self.taking_weights(label):
            body: Json = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            async with self._limit("/collective_rpc", seconds):
                await self._post("/collective_rpc", body)

    @asynccontextmanager
    async def taking_weights(self, label: str) -> AsyncIterator[None]:
        """Have requests wait while the block changes the weights; then what old ones computed is dropped, and `label` taken."""
        await self._change("/pause", None, mode="keep")
        try:
            yield
            # Without the running requests their blocks would stay, and be found by new ones.
            cleared, _ = await self._change("/reset_prefix_cache", None, reset_running_requests="true")
            if cleared.get("success") is False:
                raise RequestFailedError(FailureKind.SERVER, f"{self.url}: the prefix cache was not cleared")
            await self._change("/update_weight_version", {"new_version": label})
        finally:
            await self._change("/resume", None)

    async def world_size(self) -> int:
        """Return the number of its workers."""
        read, answer = await self._get("/get_world_size", include_dp="true")
        return number_of(read, "world_size", answer)

    async def join(self, meeting: Json, seconds: float) -> None:
        """Have its workers meet a learner within `seconds`."""
        async with self._limit("/init_weight_transfer_engine", seconds):
            await self._post("/init_weight_transfer_engine", {"init_info": meeting})

    async def leave(self) -> None:
        """Have its workers close their connections to a learner, if they have some."""
        await self._change("/shutdown_weight_transfer_engine", None)

    async def receive(self, about: Json, seconds: float) -> None:
        """Have its workers receive the weights that a learner sends, and put them in place, each within `seconds`."""
        try:
            await self._change("/start_weight_update", None)
        except RequestFailedError:
            # One that was cut off still counts as begun; an update that vLLM refuses ends it.
            with suppress(RequestFailedError):
                await self._change("/update_weights", {"update_info": {}})
            await self._change("/start_weight_update", None)
        async with self._limit("/update_weights", seconds):
            await self._post("/update_weights", {"update_info": about})
        async with self._limit("/finish_weight_update", seconds):
            await self._post("/finish_weight_update", {})

    async def weight_checksums(self, seconds: float) -> Mapping[str, str] | None:
        """Return the checksum of each parameter of its workers; None if it has no such route."""
        try:
            async with self._limit("/weight_checker", seconds):
                answer = await self._client.post_json(
                    f"{self.url}/weight_checker", {"action": "checksum"}, headers=self._headers
                )
        except RequestFailedError as failed:
            if failed.status == 404:
                return None
            raise
        checksums = part_of(as_mapping(answer, _MAX_CHECKSUMS), "checksums")
        return {name: text_of(checksums, name, answer) for name in checksums}

    async def sleep(self) -> None:
        """Hand back its memory: the weights are gone until `wake` and `load`."""
        await self._change("/sleep", None, level="2")

    async def wake(self) -> None:
        """Take its memory again."""
        await self._change("/wake_up", None)

    async def is_asleep(self) -> bool:
        """Return True if it sleeps, or was paused; False without dev mode."""
        try:
            read, answer = await self._get("/is_sleeping")
        except RequestFailedError as failed:
            if failed.status == 404:
                return False
            raise
        is_asleep = read.get("is_sleeping")
        if not isinstance(is_asleep, bool):
            raise answer.malformed("expected is_sleeping: is this a vLLM server?")
        return is_asleep

    async def label(self) -> str:
        """Return the label of its weights; "" without dev mode."""
        try:
            return await self._label()
        except RequestFailedError as failed:
            if failed.status == 404:
                return ""
            raise

    async def _label(self) -> str:
        read, answer = await self._get("/weight_info")
        return text_of(read, "weight_version", answer)

    async def health(self) -> None:
        """Return if it is healthy.

        Raises:
            RequestFailedError: It is not.
        """
        await self._client.get(f"{self.url}/health", headers=self._headers)

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()

    async def _get(self, path: str, **params: str) -> tuple[Mapping[str, Json], Answer]:
        answer = await self._client.get(f"{self.url}{path}", params=params, headers=self._headers)
        return as_mapping(answer, max_answer_bytes(0, 0)), answer

    async def _change(self, path: str, body: Json, **params: str) -> tuple[Mapping[str, Json], Answer]:
        """Post what changes its state and moves no weights."""
        async with self._limit(path, CHANGE_SECONDS):
            return await self._post(path, body, **params)

    @asynccontextmanager
    async def _limit(self, path: str, seconds: float) -> AsyncIterator[None]:
        """Raise RequestFailedError if the block takes longer: `engine.request_seconds` is for answers of many tokens."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            reason = f"{self.url}{path} does not answer within {seconds:.0f} s"
            raise RequestFailedError(FailureKind.TIMEOUT, reason) from None

    async def _post(self, path: str, body: Json, **params: str) -> tuple[Mapping[str, Json], Answer]:
        answer = await self._client.post_json(f"{self.url}{path}", body, params=params, headers=self._headers)
        return (as_mapping(answer, max_answer_bytes(0, 0)) if answer.body else {}), answer


def _described(info: ServerInfo, config: Json, answer: Answer) -> ServerInfo:
    """Return `info` with what a server's configuration says; a value of another type counts as left out."""
    about = part_of(config, "model_config")
    most, can_sleep = about.get("max_logprobs"), about.get("enable_sleep_mode")
    splits = part_of(config, "scheduler_config").get("enable_chunked_prefill") is True
    return replace(
        info,
        dtype=_name(about, "dtype", answer).removeprefix("torch.") or None,
        logprobs_mode=_name(about, "logprobs_mode", answer) or None,
        max_logprobs=most if isinstance(most, int) else None,
        splits_prompts_on_cpu=splits and part_of(config, "device_config").get("device") == "cpu",
        can_sleep=can_sleep if isinstance(can_sleep, bool) else None,
    )


def _name(about: Mapping[str, Json], key: str, answer: Answer) -> str:
    return text_of(about, key, answer) if isinstance(about.get(key), str) else ""
