"""Settings of engines, apart from their code, which imports torch or a client."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan, prod
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from ramify.core.config import (
    Config,
    InputFile,
    Length,
    Name,
    Reserved,
    Seconds,
    ServiceUrl,
    ServiceUrls,
    Switch,
    UserPath,
    Variable,
)
from ramify.core.errors import ConfigError
from ramify.net.configs import HttpConfig

_FLAGS_OF_OURS = (
    *("--model", "--served-model-name", "--host", "--port", "--dtype", "--max-model-len", "--max-logprobs"),
    *("--logprobs-mode", "--generation-config", "--enable-scale-out", "--enable-sleep-mode", "--api-key"),
    *("--uds", "--grpc-port", "--no-enable-prefix-caching", "--hf-overrides", "--tokenizer"),
    *("--skip-tokenizer-init", "--weight-transfer-config"),
)
_QUANTISED = ("--quantization", "-q")
_LAUNCHED = ("gpus", "python", "flags", "batch_invariant")
SERVER_KEYS = (
    *("urls", "launch", "gpus", "python", "flags", "model", "sleep", "weights_dir", "key_variable"),
    *("start_seconds", "request_seconds"),
)
"""Keys that say how servers are reached, and not what they compute: a run may go on with others."""
_VLLM_SHARE = 0.9
"""Share of a GPU that a vLLM server takes without a flag."""


@dataclass(frozen=True, slots=True)
class GpuTurns:
    """The way in which an engine's servers and the learner take turns on the same GPUs.

    Attributes:
        share: Of each GPU's memory, that a server takes while it is awake.
        gpus: That a server is split over.
    """

    share: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Config):
    """All that a recipe may know of any engine. A new engine overrides what differs, and `assemble.agent` builds it."""

    computes_here: ClassVar[bool] = False
    """The model runs in this process."""
    has_exact_entropies: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    """The same request gives the same answer, if the run is deterministic."""

    @property
    def starts_servers(self) -> bool:
        """True if ramify starts servers with the model's folder."""
        return False

    @property
    def loads_weights(self) -> bool:
        """True if the weights are read from the model's folder, here or by servers that ramify starts."""
        return self.computes_here or self.starts_servers

    @property
    def uses_given_servers(self) -> bool:
        """True if a model writes the turns that ramify does not load: the servers are somebody else's."""
        return not self.loads_weights and self.script_file is None

    @property
    def continues_turns(self) -> bool:
        """True if it can go on inside a turn that it or somebody else began."""
        return True

    @property
    def learner_weights(self) -> Literal["shared", "copy"] | None:
        """The learner's own tensors or a copy of them, with which it is set to compute; None if it is set to neither."""
        return None

    @property
    def local_slots(self) -> int:
        """Sequences whose keys and values lie in this process at once."""
        return 0

    @property
    def gpu_turns(self) -> GpuTurns | None:
        """Return how its servers share the learner's GPUs; None if they do not use them."""
        return None

    @property
    def server_gpus(self) -> GpuTurns | None:
        """Return the GPUs that each server takes which ramify starts, and the share of each; None if it starts none."""
        return None

    @property
    def script_file(self) -> Path | None:
        """The file with the turns that it plays in place of a model's; None if a model writes them."""
        return None

    @property
    def service_key(self) -> str | None:
        """The environment variable with the key of its service, if that needs one."""
        return None

    @property
    def started_on(self) -> tuple[str, ...]:
        """Return the GPUs of each server that ramify starts, as its key says."""
        return ()

    @property
    def learner_keys(self) -> tuple[str, ...]:
        """Keys that are set and act with a learner only, of which an engine has none in an evaluation."""
        return ()

    @property
    def served_dtype(self) -> str | None:
        """The type in which its servers compute; None if that is `model.dtype` or theirs to say."""
        return None

    def refuse_model(self, folder: Path, *, hands_over: bool) -> None:
        """Check that it can have the model of a folder; with `hands_over` it gets the weights of a learner.

        Raises:
            ConfigError: It cannot.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngineConfig(EngineConfig):
    """The engine in this process; it generates up to `slots` sequences at once."""

    computes_here: ClassVar[bool] = True
    has_exact_entropies: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    name: Literal["local"] = "local"
    slots: Reserved = 128

    @property
    def local_slots(self) -> int:
        """All of its slots."""
        return self.slots


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEngineConfig(LocalEngineConfig):
    """The engine of a training run in this process.

    Its `weights` are the learner's own ("shared"), or those of a model of its own, into which the learner's are copied
    after each step and compared on a fixed prompt ("copy"). Without this key they are shared where they can be: in one
    process that computes in float32.
    """

    weights: Literal["shared", "copy"] | None = None

    @property
    def learner_weights(self) -> Literal["shared", "copy"] | None:
        """As its key says."""
        return self.weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedEngineConfig(EngineConfig):
    """An engine that plays the turns of a script file (see engines/scripted.py)."""

    repeats: ClassVar[bool] = True

    name: Literal["scripted"]
    script: InputFile

    @property
    def script_file(self) -> Path:
        """The script."""
        return self.script


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEngineConfig(EngineConfig):
    """An endpoint in OpenAI's format (vLLM has them too): text in, text out, so for evaluation only.

    `api` is what it has: `completions` goes on from the rendered context, `chat` takes messages. `model.path` is then a folder with the model's tokenizer, which renders prompts and counts tokens. `key_variable` is
    the environment variable with the service's key, if it needs one. `slots` trajectories run concurrently. `url` may be a
    list of equal servers: requests are spread over them, and one that does not answer is left out for a while.
    """

    name: Literal["openai"]
    url: ServiceUrls
    model: Name
    api: Literal["completions", "chat"] = "completions"
    key_variable: Variable | None = None
    slots: Reserved = 64
    http: HttpConfig = HttpConfig(timeout_seconds=600.0, in_flight=256)

    @property
    def continues_turns(self) -> bool:
        """True except for a chat endpoint, which writes whole turns."""
        return self.api != "chat"

    @property
    def service_key(self) -> str | None:
        """As its key says."""
        return self.key_variable


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineConfig(EngineConfig):
    """vLLM servers: those at `urls`, or those that ramify starts (`launch`), one for each entry of `gpus`.

    An entry of `gpus` names the GPUs of a server as CUDA_VISIBLE_DEVICES does, such as "0,1" (then also flags =
    ["--tensor-parallel-size", "2"]); "" leaves them to vLLM. `python` is the interpreter of an environment with vLLM, if it
    is not ramify's own; `flags` are more flags of the server. Such servers listen on a Unix socket and ask for a key of their
    own; `key_variable` holds that of servers at `urls`. `batch_invariant` asks for vLLM's batch-invariant mode, in
    which logprobs do not depend on what is computed beside them. With `sleep` the servers hand back their memory while
    the learner computes, for GPUs that both share. The last two are untested on a GPU.

    `weights` says how new weights reach the servers: through a "folder", over "gloo" (servers of this machine) or over "nccl" (on
    GPUs that no learner uses; untested). `sleep`, `weights` and `weights_dir` act in training only.

    `dtype` is the type in which the servers compute. `top_k` most likely tokens bound the entropies. `slots` sequences
    are in flight at each server. `weights_dir` is where new weights are handed over: memory (/dev/shm) for servers of
    this machine, else a folder that both machines see. A server may take `start_seconds` to start or to come back, and
    `request_seconds` to answer.
    """

    name: Literal["vllm"]
    urls: tuple[ServiceUrl, ...] = ()
    launch: Switch = False
    gpus: Annotated[tuple[str, ...], Length(1, 4096)] = ("",)
    python: UserPath | None = None
    flags: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    model: Name | None = None
    top_k: Reserved = 20
    slots: Reserved = 256
    batch_invariant: Switch = False
    sleep: Switch = False
    weights: Literal["folder", "gloo", "nccl"] = "folder"
    weights_dir: UserPath | None = None
    key_variable: Variable | None = None
    start_seconds: Seconds = 900.0
    request_seconds: Seconds = 1800.0

    @property
    def starts_servers(self) -> bool:
        """True as `launch` says."""
        return self.launch

    @property
    def gpu_turns(self) -> GpuTurns | None:
        """With `sleep` its servers and the learner share GPUs; a flag may say how much of them a server takes."""
        return self._turns if self.sleep else None

    @property
    def server_gpus(self) -> GpuTurns | None:
        """With `launch`, as its flags and `gpus` say."""
        return self._turns if self.launch else None

    @property
    def _turns(self) -> GpuTurns:
        # Data-parallel ranks have whole copies.
        return GpuTurns(_share(self.flags), _size(self.flags, "tensor") * _size(self.flags, "pipeline"))

    @property
    def started_on(self) -> tuple[str, ...]:
        """With `launch`, the entries of `gpus`."""
        return self.gpus if self.launch else ()

    @property
    def learner_keys(self) -> tuple[str, ...]:
        """Those of its memory and of its new weights."""
        return tuple(key for key in ("sleep", "weights", "weights_dir") if self.is_changed(key))

    @property
    def service_key(self) -> str | None:
        """As its key says."""
        return self.key_variable

    @property
    def served_dtype(self) -> str:
        """As its key says."""
        return self.dtype

    def refuse_model(self, folder: Path, *, hands_over: bool) -> None:
        """Check that servers can have the model of a folder.

        Raises:
            ConfigError: It is an adapter and no weights are handed over; servers on other machines and no folder that both see.
        """
        from ramify.modeling.model_config import is_adapter_folder

        if is_adapter_folder(folder) and not hands_over:
            raise ConfigError(
                f"model.path: {folder} is an adapter, which a vLLM server here does not load. Merge it first "
                "(ramify merge lora)."
            )
        if self.away and hands_over and self.weights == "folder" and self.weights_dir is None:
            raise ConfigError(
                f"engine.weights_dir: {self.away[0]} is on another machine. Choose a folder on a disk that both machines share."
            )

    @property
    def away(self) -> list[str]:
        """Servers of other machines."""
        return [url for url in self.urls if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1")]

    def __post_init__(self) -> None:
        if self.launch == bool(self.urls):
            raise ValueError("urls: expected the addresses of servers, or launch = true, not both")
        for key in _LAUNCHED:
            if not self.launch and self.is_changed(key):
                raise ValueError(f"{key}: has no effect without launch = true. Remove it.")
        for key in ("model", "key_variable"):
            if self.launch and getattr(self, key) is not None:
                raise ValueError(f"{key}: has no effect with launch = true. Remove it.")
        self._refuse_weights()
        for flag in self.flags:
            if _flag_name(flag) in _FLAGS_OF_OURS:
                raise ValueError(f"flags: {flag.partition('=')[0]} is set by ramify. Remove it.")
        self._refuse_gpus()
        if not 0 < _share(self.flags) <= 1:
            raise ValueError("flags: expected a number above 0 and up to 1 after --gpu-memory-utilization")

    def _refuse_weights(self) -> None:
        """Raise ValueError if weights cannot reach these servers in that way."""
        if self.weights == "gloo" and self.away:
            raise ValueError(
                f'weights: "gloo" reaches this machine alone. {self.away[0]} needs "nccl" or "folder".'
            )
        if self.weights != "folder" and self.sleep:
            raise ValueError(
                f'weights: "{self.weights}" has learner and servers at work at once, which sleep = true is to prevent. Choose "folder".'
            )
        if self.weights != "folder" and self.weights_dir is not None:
            raise ValueError(f'weights_dir: has no effect with weights = "{self.weights}". Remove it.')
        if self.weights != "folder" and any(_flag_name(flag) in _QUANTISED for flag in self.flags):
            raise ValueError(
                f'weights: "{self.weights}" compares checksums, in which a quantised server hides small steps. Choose "folder".'
            )

    def _refuse_gpus(self) -> None:
        """Raise ValueError if two servers have a GPU, or a server is not split over all that it has."""
        size = prod(_size(self.flags, kind) for kind in ("tensor", "pipeline", "data"))
        servers: set[str] = set()
        for entry in filter(None, self.gpus):
            cards = [card.strip() for card in entry.split(",")]
            if not all(cards) or len(set(cards)) < len(cards):
                raise ValueError(f'gpus: expected numbers of different GPUs, such as "0,1", got "{entry}"')
            if shared := sorted(servers.intersection(cards)):
                raise ValueError(
                    f"gpus: GPU {shared[0]} is of two servers. Give each server GPUs of its own."
                )
            if len(cards) != size:
                raise ValueError(
                    f'gpus: "{entry}" has {len(cards)} GPUs and flags split a server over {size}. Change one of them '
                    "(--tensor-parallel-size)."
                )
            servers.update(cards)


def _flag_name(flag: str) -> str:
    """Return the name of a flag before its value, as vLLM reads it: with "-" for "_"."""
    return flag.partition("=")[0].replace("_", "-")


def _share(flags: Sequence[str]) -> float:
    """Return the share of a GPU that a server's flags ask for; NaN if no number follows the flag."""
    return _number(flags, ("--gpu-memory-utilization",), _VLLM_SHARE)


def _size(flags: Sequence[str], kind: str) -> int:
    """Return over how many GPUs a server's flags split it in a way: "tensor", "pipeline" or "data"; 0 if that is no number."""
    size = _number(flags, (f"--{kind}-parallel-size", f"-{kind[0]}p"), 1.0)
    return int(size) if size == size // 1 else 0


def _number(flags: Sequence[str], names: Sequence[str], default: float) -> float:
    """Return the number of a flag, the last one as in vLLM; NaN if none follows it."""
    number = default
    for flag, following in pairwise((*flags, "")):
        if _flag_name(flag) in names:
            try:
                number = float(flag.partition("=")[2] or following)
            except ValueError:
                number = nan
    return number
