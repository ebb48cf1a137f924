"""A vLLM server that ramify starts: its command, its environment, its log, and its end.

It listens on a Unix socket in a folder of this user alone, and every route asks for a key drawn for this server: other users
cannot reach the socket, and programs of the same user (tools, environments) do not have the key.

The server and what it starts are a process group of their own, which is killed as one. If ramify itself is killed, the
kernel ends the server (on Linux).
"""

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.core.config import may_hold_key
from ramify.core.errors import MachineError
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.vllm.folder import SOCKETS, SocketFolder
from ramify.runtime.bound_process import bound_command

_PATIENCE_SECONDS = 10.0
"""How long a server may take to end before it is killed."""
_MAX_CHARACTERS = 300
_MIDDLEWARE = Path(__file__).parent / "middleware"
_WEIGHT_ENGINES: Mapping[str, tuple[str, ...]] = {
    "folder": (),
    "gloo": ("--weight-transfer-config", '{"backend": "ramify"}'),
    "nccl": ("--weight-transfer-config", '{"backend": "nccl"}'),
}
"""Flags by `engine.weights`; the engine "ramify" lies beside the middleware."""
_TRAINERS = ("RANK", "WORLD_SIZE")
_TRAINERS_PREFIXES = ("TORCHELASTIC_", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "RAMIFY_")
"""Variables of torchrun and ramify: a server that read them would join the trainer's processes."""
_LEARNERS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "VLLM_PORT")
"""Settings of the learner's allocator: a server that can sleep refuses to start with expandable segments. And a port that servers of
one machine would fight for; on Kubernetes a service called vllm sets it to an address, of which vLLM dies."""
_NO_VLLM = "No module named 'vllm'"
_LOG_PREFIX = re.compile(r"^\([^)]*\) [A-Z]+ \S+ \S+ \[[^]]*\] ")
"""Of vLLM: (process) LEVEL date time [file:line]"""


@dataclass(frozen=True, slots=True)
class Command:
    """How a server is started.

    Attributes:
        config: The engine's settings, with `launch`.
        model: Folder of the model.
        context_tokens: Longest sequence.
        gpus: CUDA_VISIBLE_DEVICES; "" leaves it as it is.
    """

    config: VllmEngineConfig
    model: Path
    context_tokens: int
    gpus: str = ""

    @property
    def python(self) -> Path:
        """The interpreter of an environment with vLLM."""
        return self.config.python or Path(sys.executable)

    def arguments(self, socket: Path) -> list[str]:
        """Return the arguments of the interpreter, for a server that listens on `socket`."""
        return [
            *("-m", "vllm.entrypoints.openai.api_server", "--uds", str(socket)),
            *(
                "--model",
                str(self.model),
                "--served-model-name",
                self.model.name,
                "--dtype",
                self.config.dtype,
            ),
            # One more than the bracket of an entropy needs: the sampled token's.
            *("--max-model-len", str(self.context_tokens), "--max-logprobs", str(self.config.top_k + 1)),
            *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
            *("--enable-prefix-caching", "--enable-scale-out"),
            *(("--enable-sleep-mode",) if self.config.sleep else ()),
            *_WEIGHT_ENGINES[self.config.weights],
            *self.config.flags,
            # The last one is asked first.
            *("--middleware", "ramify_auth.RequireKey"),
        ]

    def environment(self, socket: Path, key: str) -> Mapping[str, str]:
        """Return the variables of the process: this process's own without keys of services and what torchrun set."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            # VLLM_API_KEY may hold a key too: the server would ask for a second one.
            if not (
                name in (*_TRAINERS, *_LEARNERS) or name.startswith(_TRAINERS_PREFIXES) or may_hold_key(name)
            )
        }
        own = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            # Messages between the server's own processes are pickles; their sockets lie beside ours.
            SOCKETS: str(socket.parent),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_MIDDLEWARE), os.environ.get("PYTHONPATH")))),
            "RAMIFY_SERVER_KEY": key,
        }
        if self.gpus:
            own["CUDA_VISIBLE_DEVICES"] = self.gpus
        if self.config.weights == "gloo" and "VLLM_PLUGINS" in inherited:
            # A list of the plugins that vLLM may load, which ours must be in.
            own["VLLM_PLUGINS"] = f"{inherited['VLLM_PLUGINS']},ramify"
        if self.config.batch_invariant:
            own["VLLM_BATCH_INVARIANT"] = "1"
        return {**inherited, **own}


class ServerProcess:
    """One server that ramify started, or will start.

    Attributes:
        log: Output of it and of its predecessors.
        socket: The Unix socket on which it listens.
        key: The key that its requests carry.
    """

    def __init__(self, command: Command, log: Path) -> None:
        """Make the folder of its socket and draw its key; start nothing yet.

        Raises:
            MachineError: There is no place for the socket.
        """
        self._command, self.log = command, log
        self._folder = SocketFolder()
        self.socket = self._folder.path / f"{log.stem}.sock"
        self.key = secrets.token_urlsafe(32)
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address behind the socket: its name in messages, the same as its log's."""
        return f"http://{self.log.stem}"

    def start(self) -> None:
        """Start it, or start it again. Call it from a thread that lives as long as the server shall.

        Raises:
            MachineError: The interpreter cannot be started.
        """
        self.kill()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # A server that was killed leaves its socket, and no other can bind to that.
        self.socket.unlink(missing_ok=True)
        try:
            with self.log.open("ab") as log:
                self._running = subprocess.Popen(
                    bound_command(self._command.python, self._command.arguments(self.socket)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._command.environment(self.socket, self.key),
                    start_new_session=True,
                )
        except OSError as error:
            raise MachineError(
                f"engine.python: {self._command.python} cannot be started: {error.strerror}. Name the Python of an "
                "environment with vLLM."
            ) from None

    @property
    def has_ended(self) -> bool:
        """True while it is not running."""
        return self._running is None or self._running.poll() is not None

    def why_it_ended(self) -> str:
        """Return one line for a message: what to do, or the last error of its log."""
        try:
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        except OSError:
            return "it wrote no log"
        errors = [line for line in lines if "Error" in line] or lines or ["it said nothing"]
        if _NO_VLLM in errors[-1]:
            return f"{self._command.python} has no vLLM: install it there, or name another Python as engine.python"
        return f"its process ended: {_LOG_PREFIX.sub('', errors[-1])[:_MAX_CHARACTERS]}"

    def stop(self) -> None:
        """Ask it to end, kill what is left of it, and remove its socket. It cannot be started again."""
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._running.wait(_PATIENCE_SECONDS)
        self.kill()
        self._folder.remove()

    def kill(self) -> None:
        """Kill it, and what it started, at once."""
        if self._running is None:
            return
        # The group may outlive its leader: the engine's processes are in it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
        self._running = None
