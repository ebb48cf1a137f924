"""How the tests start and use real vLLM servers."""

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import httpx

from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.vllm.process import Command

FLAGS = ("--enforce-eager", "--gpu-memory-utilization", "0.08", "--no-enable-chunked-prefill")
"""On a CPU: no compiler, a small share of its memory, and prompts in one piece (engines/vllm/server.py says why)."""
CONTEXT = 240


KEY, KEY_VARIABLE = "a-key-of-the-engine-tests", "RAMIFY_TEST_SERVER_KEY"


class NamedServer:
    """A server as docs/vllm.md has users start it: on a port, with the middleware and a key. Recipes name its address."""

    def __init__(self, command: Command, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._folder = tempfile.TemporaryDirectory()
        unused = Path(self._folder.name) / "socket"
        arguments = command.arguments(unused)
        position = arguments.index("--uds")
        arguments[position : position + 2] = ["--host", "127.0.0.1", "--port", str(port)]
        with log.open("ab") as file:
            self._running = subprocess.Popen(
                [command.python, *arguments],
                stdout=file,
                stderr=file,
                env=command.environment(unused, KEY),
                start_new_session=True,
            )

    def ask(self, method: str, path: str, key: str | None = KEY, **body: object) -> httpx.Response:
        """The answer to a request with the key, or without."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.request(method, self.url + path, headers=headers, timeout=60, trust_env=False, **body)

    def stop(self) -> None:
        os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
        self._folder.cleanup()


def launched_by(python, *flags):
    """Settings of a server in float32."""
    return VllmEngineConfig(name="vllm", launch=True, python=python, flags=flags, dtype="float32", top_k=39)


def engine_of(folder, *servers, **settings):
    section = {
        "name": "vllm", "urls": tuple(s.url for s in servers), "dtype": "float32", "start_seconds": 400.0,
        "key_variable": KEY_VARIABLE,
    }  # fmt: skip
    os.environ[KEY_VARIABLE] = KEY
    hands_over = settings.pop("hands_over", False)
    return build_vllm(
        VllmEngineConfig(**{**section, **settings}),
        ChatTokenizer(folder),
        CONTEXT,
        Path("nowhere"),
        print,
        hands_over=hands_over,
    )


def play(engine, work):
    async def run():
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())
