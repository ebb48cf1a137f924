"""Settings of engines, apart from their code, which imports torch or a client."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ramify.core.config import Config, Length, Name, Reserved, Seconds, ServiceUrl, Switch, UserPath, Variable
from ramify.net.configs import HttpConfig

_FLAGS_OF_OURS = (
    *("--model", "--served-model-name", "--host", "--port", "--dtype", "--max-model-len", "--max-logprobs"),
    *("--logprobs-mode", "--generation-config", "--enable-scale-out", "--enable-sleep-mode", "--api-key"),
    *("--uds", "--grpc-port", "--no-enable-prefix-caching", "--hf-overrides", "--tokenizer"),
    "--skip-tokenizer-init",
)
_LAUNCHED = ("gpus", "python", "flags", "batch_invariant")
SERVER_KEYS = (
    *("urls", "launch", "gpus", "python", "flags", "model", "sleep", "weights_dir", "key_variable"),
    *("start_seconds", "request_seconds"),
)
"""Keys that say how servers are reached, and not what they compute: a run may go on with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngineConfig(Config):
    """The engine in this process; it generates up to `slots` sequences at once."""

    computes_here: ClassVar[bool] = True
    """The model runs in this process, with exact entropies."""
    repeats: ClassVar[bool] = True
    """The same request gives the same answer, if the run is deterministic."""
    starts_servers: ClassVar[bool] = False
    """ramify starts servers with the model's folder."""

    name: Literal["local"]
    slots: Reserved = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEngineConfig(LocalEngineConfig):
    """The engine of a training run in this process.

    Its `weights` are the learner's own ("shared"), or those of a model of its own, into which the learner's are copied
    after each step and compared on a fixed prompt ("copy"). Without this key they are shared where they can be: in one
    process that computes in float32.
    """

    weights: Literal["shared", "copy"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedEngineConfig(Config):
    """An engine that plays the turns of a script file (see engines/scripted.py)."""

    computes_here: ClassVar[bool] = False
    repeats: ClassVar[bool] = True
    starts_servers: ClassVar[bool] = False

    name: Literal["scripted"]
    script: UserPath


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEngineConfig(Config):
    """An endpoint in OpenAI's format (vLLM has them too): text in, text out, so for evaluation only.

    `api` is what it has: `completions` goes on from the rendered context, `chat` takes messages. `model.path` is then a folder with the model's tokenizer, which renders prompts and counts tokens. `key_variable` is
    the environment variable with the service's key, if it needs one. `slots` trajectories run concurrently.
    """

    computes_here: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    starts_servers: ClassVar[bool] = False

    name: Literal["openai"]
    url: ServiceUrl
    model: Name
    api: Literal["completions", "chat"] = "completions"
    key_variable: Variable | None = None
    slots: Reserved = 64
    http: HttpConfig = HttpConfig(timeout_seconds=600.0, in_flight=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineConfig(Config):
    """vLLM servers: those at `urls`, or those that ramify starts (`launch`), one for each entry of `gpus`.

    An entry of `gpus` names the GPUs of a server as CUDA_VISIBLE_DEVICES does, such as "0,1" (then also flags =
    ["--tensor-parallel-size", "2"]); "" leaves them to vLLM. `python` is the interpreter of an environment with vLLM, if it
    is not ramify's own; `flags` are more flags of the server. Such servers listen on a Unix socket and ask for a key of their
    own; `key_variable` holds that of servers at `urls`. `batch_invariant` asks for vLLM's batch-invariant mode, in
    which logprobs do not depend on what is computed beside them. With `sleep` the servers hand back their memory while
    the learner computes, for GPUs that both share. The last two are untested on a GPU.

    `dtype` is the type in which the servers compute. `top_k` most likely tokens bound the entropies. `slots` sequences
    are in flight at each server. `weights_dir` is where new weights are handed over: memory (/dev/shm) for servers of
    this machine, else a folder that both machines see. A server may take `start_seconds` to start or to come back, and
    `request_seconds` to answer.
    """

    computes_here: ClassVar[bool] = False
    repeats: ClassVar[bool] = False

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
    weights_dir: UserPath | None = None
    key_variable: Variable | None = None
    start_seconds: Seconds = 900.0
    request_seconds: Seconds = 1800.0

    @property
    def starts_servers(self) -> bool:
        """True if ramify starts servers with the model's folder."""
        return self.launch

    def __post_init__(self) -> None:
        if self.launch == bool(self.urls):
            raise ValueError("urls: expected the addresses of servers, or launch = true, not both")
        for key in _LAUNCHED:
            if not self.launch and self.is_changed(key):
                raise ValueError(f"{key}: acts with launch = true only; leave it out")
        for key in ("model", "key_variable"):
            if self.launch and getattr(self, key) is not None:
                raise ValueError(f"{key}: has no effect with launch = true. Remove it.")
        for flag in self.flags:
            if flag.partition("=")[0] in _FLAGS_OF_OURS:
                raise ValueError(f"flags: {flag.partition('=')[0]} is set by ramify; leave it out")
