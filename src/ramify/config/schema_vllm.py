"""The schema of the vLLM engine, in training and evaluation."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ramify.config.schema_parts import Section
from ramify.core.config import Name, Reserved, Seconds, ServiceUrl, Switch, UserPath, Variable

_OURS = (
    *("--model", "--served-model-name", "--host", "--port", "--dtype", "--max-model-len", "--max-logprobs"),
    *(
        "--logprobs-mode",
        "--generation-config",
        "--enable-scale-out",
        "--enable-sleep-mode",
        "--api-key",
        "--uds",
        "--grpc-port",
    ),
    *("--no-enable-prefix-caching", "--hf-overrides", "--tokenizer", "--skip-tokenizer-init"),
)
_LAUNCHED = ("gpus", "python", "flags", "batch_invariant")
SERVER_KEYS = (
    *("urls", "launch", "gpus", "python", "flags", "model", "sleep", "weights_dir", "key_variable"),
    *("start_seconds", "request_seconds"),
)
"""Keys that say how servers are reached, and not what they compute: a run may go on with others."""


class VllmEngineSection(Section):
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
    gpus: Annotated[tuple[str, ...], Field(min_length=1)] = ("",)
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

    @model_validator(mode="after")
    def _one_kind(self) -> "VllmEngineSection":
        if self.launch == bool(self.urls):
            raise ValueError("urls: expected the addresses of servers, or launch = true, not both")
        for key in _LAUNCHED:
            if not self.launch and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: acts with launch = true only; leave it out")
        for key in ("model", "key_variable"):
            if self.launch and getattr(self, key) is not None:
                raise ValueError(f"{key}: has no effect with launch = true. Remove it.")
        for flag in self.flags:
            if flag.partition("=")[0] in _OURS:
                raise ValueError(f"flags: {flag.partition('=')[0]} is set by ramify; leave it out")
        return self
