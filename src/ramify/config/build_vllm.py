"""Builds the vLLM engine of a checked recipe: its servers, given or started, and the folder of their weights."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ramify.config.schema_vllm import VllmEngineSection
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.engines.vllm.engine import VllmEngine
    from ramify.engines.vllm.process import ServerProcess
    from ramify.engines.vllm.replica import Replica

_MEMORY = Path("/dev/shm")
_MOST_BYTES = 256_000_000
"""Of an answer; one with the most likely tokens of long turns has some megabytes."""


def build_vllm(
    section: VllmEngineSection,
    tokenizer: "ChatTokenizer",
    context_tokens: int,
    run_folder: Path,
    note: Callable[[str], None],
    *,
    hands_over: bool,
) -> "VllmEngine":
    """The engine; with `hands_over` its servers get new weights.

    Raises:
        ConfigError: The model is an adapter and its weights are not handed over; servers on other machines and no folder
            that both see.
        MachineError: A server's Python cannot be started, or the folder of the weights not be written.
    """
    from ramify.engines.vllm.engine import VllmEngine
    from ramify.engines.vllm.folder import WeightsFolder
    from ramify.engines.vllm.process import Command, ServerProcess, own_python
    from ramify.modeling.model_config import read_model_config, whole_folder
    from ramify.net.secrets import read_key

    key = None if section.key_variable is None else read_key(section.key_variable)
    check_vllm(section, tokenizer.folder, hands_over=hands_over)
    whole = whole_folder(tokenizer.folder)
    weights = None
    if hands_over:
        weights = WeightsFolder(_parent(section, run_folder))
        if section.weights_dir is not None:
            weights.share()
    replicas: list[Replica]
    if section.launch:
        logs = run_folder / "engine"
        processes = [
            ServerProcess(
                Command(
                    python=section.python or own_python(),
                    model=whole.absolute(),
                    dtype=section.dtype,
                    context_tokens=context_tokens,
                    max_logprobs=section.top_k + 1,
                    flags=section.flags,
                    gpus=gpus,
                    batch_invariant=section.batch_invariant,
                    sleeps=section.sleep,
                    key=key,
                ),
                logs / f"server-{number}.log",
            )
            for number, gpus in enumerate(section.gpus)
        ]
        several = f"{len(processes)} servers" if len(processes) > 1 else "a server"
        note(f"engine 'vllm': starts {several}; logs in {logs}")
        replicas = [_replica(section, process.url, process, key, note) for process in processes]
    else:
        replicas = [_replica(section, url, None, key, note) for url in section.urls]
    return VllmEngine(
        replicas,
        tokenizer,
        vocab_size=int(read_model_config(whole)["vocab_size"]),
        context_tokens=context_tokens,
        slots=section.slots * len(replicas),
        dtype=section.dtype,
        entropy_top_k=section.top_k,
        model=section.model,
        weights=weights,
        sleeps=section.sleep,
        note=note,
    )


def check_vllm(section: VllmEngineSection, model: Path, *, hands_over: bool) -> None:
    """Check that servers can have the model of a folder.

    Raises:
        ConfigError: As for `build_vllm`.
    """
    from ramify.modeling.model_config import is_adapter_folder

    if is_adapter_folder(model) and not hands_over:
        raise ConfigError(
            f"model.path: {model} is an adapter, which a vLLM server here does not load; merge it first "
            "(ramify merge lora)"
        )
    away = [url for url in section.urls if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1")]
    if away and hands_over and section.weights_dir is None:
        raise ConfigError(
            f"engine.weights_dir: {away[0]} is on another machine; name a folder that both see (a shared disk)"
        )


def _parent(section: VllmEngineSection, run_folder: Path) -> Path:
    """Where the weights are handed over."""
    if section.weights_dir is not None:
        return section.weights_dir
    return _MEMORY if _MEMORY.is_dir() else run_folder / "weights"


def _replica(
    section: VllmEngineSection,
    url: str,
    process: "ServerProcess | None",
    key: str | None,
    note: Callable[[str], None],
) -> "Replica":
    from ramify.engines.vllm.replica import Replica
    from ramify.engines.vllm.server import VllmServer
    from ramify.net.client import HttpClient, HttpSettings

    settings = HttpSettings(
        timeout_seconds=section.request_seconds,
        attempts=1,
        in_flight=section.slots + 8,  # also while all slots are in use, health is asked for
        max_bytes=_MOST_BYTES,
    )
    # With many_hosts a refusal concerns one request, and no number of failures makes the client give up: servers return.
    client = HttpClient(f"engine {url}", settings, secrets=[key] if key else [], many_hosts=True)
    return Replica(VllmServer(client, url, key), process, patience_seconds=section.start_seconds, note=note)
