r"""The process in which math-verify compares formulas: a comparison may never end, or use up all memory.

The process forks for every comparison, so that none sees what another left behind. Each comparison has a budget of CPU
time rather than wall time, so a pair gets the same verdict however busy the machine is.

Run as a program, this module is that process. The first line of its input has the address space in bytes and the CPU
seconds of a comparison; it answers "ready". After that each line of input is a JSON array, [prediction, gold, "latex" |
"bare"], and each line of output a `Symbolic`. The process ends when its input ends.
"""

import contextlib
import functools
import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import Literal

from ramify.sandbox.kernel import forbid_inspection

_MAX_CHARS = 2000
_LOST_SECONDS = 900.0
"""A process that is silent for so long counts as lost, however busy the machine may be."""
_WARM_UP = (
    (r"\frac{x^2-1}{x-1}+\sqrt{8}", r"x+1+2\sqrt{2}"),
    (r"\left\{1,\pi\right\}", r"\left\{\pi,1\right\}"),
    (r"(1, 2] \cup [3, \infty)", r"[3, \infty) \cup (1, 2]"),
    (r"\sin(x) \le 2", r"2 \ge \sin(x)"),
    (r"\sum_{k=1}^{9} k^2", "285"),
    (r"\int_0^1 x dx", "0.5"),
    (r"\lim_{x \to 0} \frac{\sin x}{x}", "1"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \end{pmatrix}"),
)
"""Comparisons that load everything once, so that the forked ones need not."""


class Symbolic(StrEnum):
    """The outcome of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNREAD = "unread"
    """One side is not a formula, or is too long."""
    TIMEOUT = "timeout"
    """It ran out of CPU time."""
    KILLED = "killed"
    """It ended for another reason, such as running out of memory."""


class MathWorker:
    """Compares formulas one at a time; threads wait for each other. The process starts with the first comparison.

    Args:
        cpu_seconds: CPU time of one comparison.
        memory_bytes: Address space of one comparison.
    """

    def __init__(self, *, cpu_seconds: float = 4.0, memory_bytes: int = 1 << 30) -> None:
        """Starts no process yet."""
        self._limits = [memory_bytes, cpu_seconds]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._remembered = functools.lru_cache(maxsize=1 << 12)(self.ask)

    def compare(self, prediction: str, gold: str, how: Literal["latex", "bare"] = "latex") -> Symbolic:
        """Compare two formulas: "latex" without delimiters, or "bare" text in which math-verify looks for mathematics."""
        if max(len(prediction), len(gold)) > _MAX_CHARS:
            return Symbolic.UNREAD
        return self._remembered(prediction, gold, how)

    def ask(self, prediction: str, gold: str, how: Literal["latex", "bare"] = "latex") -> Symbolic:
        """As `compare`, but without its cache."""
        with self._lock:
            for _ in range(2):  # somebody may have killed the process
                if self._process is None:
                    self._process = self._started()
                answer = _exchange(self._process, [prediction, gold, how])
                if answer is not None:
                    return Symbolic(answer)
                self._end()
        return Symbolic.KILLED

    def close(self) -> None:
        """End the process and its current comparison. It also ends when this process ends."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[2])
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-X", "utf8", "-m", "ramify.rewards.math_workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": root, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        _exchange(process, self._limits)
        return process


@functools.cache
def shared_worker() -> MathWorker:
    """The one worker that all scores of this program share."""
    return MathWorker()


def _exchange(process: "subprocess.Popen[bytes]", request: object) -> str | None:
    """The line of the answer; None if the process has ended or is lost."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    if not select.select([process.stdout], [], [], _LOST_SECONDS)[0]:
        return None
    return process.stdout.readline().decode().strip() or None


def _serve() -> None:
    forbid_inspection()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    # What a library prints must not be mistaken for an answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    memory_bytes, cpu_seconds = json.loads(requests.readline())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for pair in _WARM_UP:
        _verdict(*pair, "latex")
    gc.disable()  # a collection would write to, and so copy, every page in every child
    answers.write(b"ready\n")
    for line in requests:
        answers.write(_in_child(json.loads(line), cpu_seconds).encode() + b"\n")


def _in_child(request: list[str], cpu_seconds: float) -> Symbolic:
    """Run one comparison in a forked process, which the kernel kills when its CPU time is spent."""
    kinds = list(Symbolic)
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        code = len(kinds)
        try:
            code = kinds.index(_verdict(*request))
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGPROF:
        return Symbolic.TIMEOUT
    return kinds[status] if 0 <= status < len(kinds) else Symbolic.KILLED


def _verdict(prediction: str, gold: str, how: str) -> Symbolic:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # By default math-verify also looks for plain numbers if it cannot read the formula.
    kinds = [LatexExtractionConfig()] if how == "latex" else [LatexExtractionConfig(), ExprExtractionConfig()]
    if how == "latex":
        prediction, gold = f"${prediction}$", f"${gold}$"
    try:
        # No time limits of math-verify: they need signals and count wall time.
        left, right = (parse(text, kinds, parsing_timeout=None) for text in (prediction, gold))
        if not left or not right:
            return Symbolic.UNREAD
        # math-verify expects the gold first. Tool-Star, whose code "bare" reproduces, passes the prediction first.
        first, second = (left, right) if how == "bare" else (right, left)
        return Symbolic.EQUAL if verify(first, second, timeout_seconds=None) else Symbolic.DIFFERENT
    except MemoryError:
        return Symbolic.KILLED
    except Exception:  # noqa: BLE001 - a formula that breaks the libraries is not equal
        return Symbolic.UNREAD


if __name__ == "__main__":
    _serve()
