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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramify.core.errors import ConfigError, EngineError
from ramify.core.protocols import Json
from ramify.core.records import Floats
from ramify.engines.vllm.answers import (
    Asked,
    Served,
    as_mapping,
    id_list,
    listed,
    number_of,
    part_of,
    read_served,
    text_of,
)
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
        version = text_of(await self._get("/version"), "version")
        models = await self._get("/v1/models")
        served = {text_of(entry, "id"): entry for entry in listed(models, "data")}
        name = model if model is not None else next(iter(served), "")
        if name not in served:
            raise ConfigError(
                f"engine.model: {self.url} serves {', '.join(map(repr, served)) or 'no model'}, not {name!r}"
            )
        self._model = name
        context = number_of(served[name], "max_model_len")
        try:
            config = (await self._get("/server_info", config_format="json")).get("vllm_config")
            label = text_of(await self._get("/weight_info"), "weight_version")
        except RequestFailedError as failed:
            if failed.status != 404:
                raise
            return ServerInfo(version, name, context, "")  # no dev mode
        about = part_of(config, "model_config")
        most = about.get("max_logprobs")
        chunks = part_of(config, "scheduler_config").get("enable_chunked_prefill")
        device = str(part_of(config, "device_config").get("device"))
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
        return tuple(id_list(await self._post("/tokenize", body), "tokens"))

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
        return read_served(read, answer, asked)

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
        read = as_mapping(answer)
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
            return text_of(await self._get("/weight_info"), "weight_version")
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
        return as_mapping(await self._client.get(f"{self.url}{path}", params=params, headers=self._headers))

    async def _post(self, path: str, body: Json, **params: str) -> Mapping[str, Json]:
        answer = await self._client.post_json(f"{self.url}{path}", body, params=params, headers=self._headers)
        return as_mapping(answer) if answer.body else {}
