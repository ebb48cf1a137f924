"""Builds the vLLM engine of a checked recipe: its servers, given or started, and the way of their weights."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.core.errors import ConfigError
from ramify.engines.configs import VllmEngineConfig

if TYPE_CHECKING:
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.engines.vllm.carriers import BucketCarrier
    from ramify.engines.vllm.engine import VllmEngine
    from ramify.engines.vllm.folder import WeightsFolder
    from ramify.engines.vllm.process import ServerProcess
    from ramify.engines.vllm.replica import Replica

_LOOPBACK = ("lo", "lo0")
_MEMORY = Path("/dev/shm")
"""Where weights are handed over, unless the recipe names a folder or the system has no such one."""


def build_vllm(
    section: VllmEngineConfig,
    tokenizer: "ChatTokenizer",
    context_tokens: int,
    run_folder: Path,
    note: Callable[[str], None],
    *,
    hands_over: bool,
) -> "VllmEngine":
    """Return the engine; with `hands_over` its servers get new weights.

    Raises:
        ConfigError: The model is an adapter and its weights are not handed over; servers on other machines and no folder
            that both see.
        MachineError: A server's Python cannot be started, or the folder of the weights not be written.
    """
    from ramify.engines.vllm.engine import VllmEngine
    from ramify.modeling.model_config import read_model_config, whole_folder
    from ramify.net.secrets import read_key

    section.refuse_model(tokenizer.folder, hands_over=hands_over)
    if not hands_over:
        # `ramify rollout` takes the recipe of training: without a learner these keys do nothing.
        section = replace(section, sleep=False, weights="folder", weights_dir=None)
    whole = whole_folder(tokenizer.folder)
    config = read_model_config(whole)
    # Models that also read pictures, such as Qwen3.5, have the sizes of the text's part apart.
    vocab_size = int((config.get("text_config") or config)["vocab_size"])
    # What was opened is closed where something later fails.
    with ExitStack() as opened:
        weights = _weights(section, run_folder) if hands_over else None
        if weights is not None:
            opened.callback(weights.remove)
        if section.launch:
            servers = _launched(
                section, whole.absolute(), context_tokens, run_folder / "engine", note, opened
            )
        else:
            key = None if section.key_variable is None else read_key(section.key_variable)
            servers = [_Server(url, key) for url in section.urls]
        engine = VllmEngine(
            [
                _replica(section, server, vocab_size, context_tokens, note, takes_weights=hands_over)
                for server in servers
            ],
            tokenizer,
            section,
            vocab_size=vocab_size,
            context_tokens=context_tokens,
            weights=weights,
            note=note,
        )
        opened.pop_all()
        return engine


def _weights(section: VllmEngineConfig, run_folder: Path) -> "WeightsFolder | BucketCarrier":
    from ramify.engines.vllm.carriers import BucketCarrier
    from ramify.engines.vllm.folder import SocketFolder, WeightsFolder
    from ramify.engines.vllm.wires import GlooWire, NcclWire

    if section.weights == "nccl":
        if section.away and os.environ.get("NCCL_SOCKET_IFNAME") in _LOOPBACK:
            raise ConfigError(
                f"engine.weights: ranks of one machine keep NCCL on its loopback device, and {section.away[0]} is on another one. "
                'Choose "folder", with a weights_dir that both see.'
            )
        return BucketCarrier(NcclWire())
    if section.weights == "gloo":
        return BucketCarrier(GlooWire(SocketFolder()))
    folder = WeightsFolder(section.weights_dir or (_MEMORY if _MEMORY.is_dir() else run_folder / "weights"))
    if section.weights_dir is not None:
        folder.share()
    return folder


@dataclass(frozen=True, slots=True)
class _Server:
    """A server's address and key, and its process if ramify starts it."""

    url: str
    key: str | None
    process: "ServerProcess | None" = None


def _launched(
    section: VllmEngineConfig,
    model: Path,
    context_tokens: int,
    logs: Path,
    note: Callable[[str], None],
    opened: ExitStack,
) -> list[_Server]:
    from ramify.engines.vllm.process import Command, ServerProcess

    processes = []
    for number, gpus in enumerate(section.gpus):
        command = Command(section, model, context_tokens, gpus)
        processes.append(ServerProcess(command, logs / f"server-{number}.log"))
        opened.callback(processes[-1].stop)
    several = f"{len(processes)} servers" if len(processes) > 1 else "a server"
    note(f"engine 'vllm': starts {several}; logs in {logs}")
    return [_Server(process.url, process.key, process) for process in processes]


def _replica(
    section: VllmEngineConfig,
    server: _Server,
    vocab_size: int,
    context_tokens: int,
    note: Callable[[str], None],
    *,
    takes_weights: bool,
) -> "Replica":
    from ramify.engines.vllm.answers import max_answer_bytes
    from ramify.engines.vllm.replica import Replica
    from ramify.engines.vllm.server import VllmServer
    from ramify.net.client import HttpClient, HttpSettings
    from ramify.net.connections import HttpTransport

    settings = HttpSettings(
        timeout_seconds=section.request_seconds,
        attempts=1,
        in_flight=section.slots + 8,  # also while all slots are in use, health is asked for
        max_bytes=max_answer_bytes(context_tokens, section.top_k),
    )
    process = server.process
    client = HttpClient(
        f"engine {server.url}",
        settings,
        secrets=[server.key] if server.key else [],
        transport=None if process is None else HttpTransport(settings.in_flight, uds=process.socket),
        # A refusal then concerns one request, and no number of failures makes the client give up: servers return.
        many_hosts=True,
    )
    return Replica(
        VllmServer(client, server.url, vocab_size, server.key),
        process,
        slots=section.slots,
        patience_seconds=section.start_seconds,
        wakes=takes_weights,
        note=note,
    )
