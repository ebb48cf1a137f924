"""The other side of a comparison: a child process in an environment of its own, one JSON line in, one out."""

import json
import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.harness.threads import thread_environment

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
_PYTHON = ENVIRONMENT / "bin" / "python"
_READY = ENVIRONMENT / "installed"
_TORCH = "torch==2.13.0"
_PACKAGES = ("trl==1.16.0",)


class PeerUnavailableError(Exception):
    """The peers' environment cannot be made, or a peer broke; the message says why."""


def peer_python() -> Path:
    """The interpreter of the peers' environment, which is made when it is absent.

    pip is called with this machine's own settings; `TORCH_ARGS` in the environment goes to pip when it installs
    torch, as in the Makefile.

    Raises:
        PeerUnavailableError: pip could not install the peers.
    """
    if not _READY.exists():
        print(f"making {ENVIRONMENT.name} (minutes)", file=sys.stderr, flush=True)
        venv.create(ENVIRONMENT, with_pip=True)
        # torch comes first and without its dependencies, so that an index given for it has to hold torch only.
        _pip("--no-deps", *shlex.split(os.environ.get("TORCH_ARGS", "")), _TORCH)
        _pip(_TORCH, *_PACKAGES)
        _READY.touch()
    return _PYTHON


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [_PYTHON, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise PeerUnavailableError(f"pip could not install {arguments[-1]} in {ENVIRONMENT.name}: {last}")


class Peer:
    """A script of `benchmarks/` that answers JSON lines, run by the peers' interpreter.

    The script reads a JSON object a line from its standard input and prints one for each; what libraries print goes
    to standard error (see `benchmarks.harness.answer`).
    """

    def __init__(self, module: str, python: Path | None = None) -> None:
        """Start `python -m module` with an interpreter; None: that of the peers' environment.

        Raises:
            PeerUnavailableError: There is no environment and none can be made.
        """
        self._module = module
        self._process = subprocess.Popen(
            [python or peer_python(), "-m", module],
            cwd=ROOT,
            env={**os.environ, **thread_environment(), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send one object, wait for the answer.

        Raises:
            PeerUnavailableError: The script ended, or answered with an error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the empty answer below says so
        line = self._process.stdout.readline()
        if not line:
            raise PeerUnavailableError(f"{self._module} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerUnavailableError(f"{self._module}: {answer['error']}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
