"""A vLLM server that ramify starts: its command, its log, and its end.

The server and what it starts are a process group of their own, which is killed as one. If ramify itself is killed, the
kernel ends the server (on Linux).
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import MachineError

_GUARD = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("ramify is gone")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Runs in the server's own Python, before vLLM: a signal when the parent ends (PR_SET_PDEATHSIG), kept through exec."""

_PATIENCE_SECONDS = 10.0
"""How long a server may take to end before it is killed."""
_TOLD_CHARACTERS = 300
_NO_VLLM = "No module named 'vllm'"
_LOG_PREFIX = re.compile(r"^\([^)]*\) [A-Z]+ \S+ \S+ \[[^]]*\] ")
"""Of vLLM: (process) LEVEL date time [file:line]"""


@dataclass(frozen=True, slots=True)
class Command:
    """How a server is started.

    Attributes:
        python: The interpreter of an environment with vLLM.
        model: Folder of the model.
        dtype: "float32" or "bfloat16".
        context_tokens: Longest sequence.
        max_logprobs: Most logprobs for a token.
        flags: More flags, as vLLM has them.
        gpus: CUDA_VISIBLE_DEVICES; "" leaves it as it is.
        batch_invariant: Have logprobs not depend on what is computed beside them (VLLM_BATCH_INVARIANT).
        sleeps: The server can hand back its memory.
        key: What requests have to carry.
    """

    python: Path
    model: Path
    dtype: str
    context_tokens: int
    max_logprobs: int
    flags: Sequence[str] = ()
    gpus: str = ""
    batch_invariant: bool = False
    sleeps: bool = False
    key: str | None = None

    def arguments(self, port: int) -> list[str]:
        """Of the interpreter."""
        return [
            *("-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)),
            *("--model", str(self.model), "--served-model-name", self.model.name, "--dtype", self.dtype),
            *("--max-model-len", str(self.context_tokens), "--max-logprobs", str(self.max_logprobs)),
            *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
            *("--enable-prefix-caching", "--enable-scale-out"),
            *(("--enable-sleep-mode",) if self.sleeps else ()),
            *self.flags,
        ]

    def environment(self) -> Mapping[str, str]:
        """Of the process."""
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        if self.gpus:
            own["CUDA_VISIBLE_DEVICES"] = self.gpus
        if self.batch_invariant:
            own["VLLM_BATCH_INVARIANT"] = "1"
        if self.key is not None:
            own["VLLM_API_KEY"] = self.key
        return {**os.environ, **own}


class ServerProcess:
    """One server that ramify started, or will start.

    Attributes:
        log: What it and its predecessors printed.
    """

    def __init__(self, command: Command, log: Path) -> None:
        """Choose a free port on this machine; start nothing yet."""
        self._command, self.log = command, log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, or start it again. Call it from a thread that lives as long as the server shall.

        Raises:
            MachineError: The interpreter cannot be started.
        """
        self.kill()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["-c", _GUARD, str(os.getpid()), *self._command.arguments(self._port)]
        try:
            with self.log.open("ab") as log:
                self._running = subprocess.Popen(
                    [str(self._command.python), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._command.environment(),
                    start_new_session=True,
                )
        except OSError as error:
            raise MachineError(
                f"engine.python: {self._command.python} cannot be started: {error.strerror}; name the Python of an "
                "environment with vLLM"
            ) from None

    @property
    def has_ended(self) -> bool:
        """Whether it is not running."""
        return self._running is None or self._running.poll() is not None

    def why_it_ended(self) -> str:
        """In one line, for a message: what to do, or the last error of its log."""
        try:
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        except OSError:
            return "it wrote no log"
        errors = [line for line in lines if "Error" in line] or lines or ["it said nothing"]
        if _NO_VLLM in errors[-1]:
            return f"{self._command.python} has no vLLM: install it there, or name another Python as engine.python"
        return f"its process ended: {_LOG_PREFIX.sub('', errors[-1])[:_TOLD_CHARACTERS]}"

    def stop(self) -> None:
        """Ask it to end, and kill what is left of it."""
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._running.wait(_PATIENCE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it, and what it started, at once."""
        if self._running is None:
            return
        # The group may outlive its leader: the engine's processes are in it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
        self._running = None


def own_python() -> Path:
    """The interpreter of this process."""
    return Path(sys.executable)
