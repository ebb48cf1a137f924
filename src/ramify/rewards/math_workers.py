"""Compares formulas with math-verify in a child process: a comparison may never end, or use up all memory.

The process forks for every comparison, so that none meets what another left behind. The limit is on CPU time, so a pair
gets the same verdict however busy the machine is.
"""

import functools
from enum import StrEnum
from typing import Literal

from ramify.runtime.limited_process import Ending, LimitedProcesses, Limits, UnansweredError, serve

_MAX_CHARS = 2000
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
        """Start no process yet."""
        limits = Limits(cpu_seconds=cpu_seconds, memory_bytes=memory_bytes, answer_bytes=100)
        self._process = LimitedProcesses("ramify.rewards.math_workers", limits)
        self._cached = functools.lru_cache(maxsize=1 << 12)(self.ask)

    def compare(self, prediction: str, gold: str, how: Literal["latex", "bare"] = "latex") -> Symbolic:
        """Compare two formulas: "latex" without delimiters, or "bare" text in which math-verify looks for mathematics."""
        if max(len(prediction), len(gold)) > _MAX_CHARS:
            return Symbolic.UNREAD
        return self._cached(prediction, gold, how)

    def ask(self, prediction: str, gold: str, how: Literal["latex", "bare"] = "latex") -> Symbolic:
        """Compare without the cache."""
        try:
            return Symbolic(self._process.ask([prediction, gold, how]))
        except UnansweredError as error:
            return Symbolic.TIMEOUT if error.ending is Ending.CPU_TIME else Symbolic.KILLED

    def close(self) -> None:
        """End the process and its current comparison. It also ends when this process ends."""
        self._process.close()


@functools.cache
def shared_worker() -> MathWorker:
    """Return the worker that all scores of this program share."""
    return MathWorker()


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
    except MemoryError:  # says nothing about the formula
        raise
    except Exception:  # noqa: BLE001 - a formula that breaks the libraries is not equal
        return Symbolic.UNREAD


def _warm_up() -> None:
    for pair in _WARM_UP:
        _verdict(*pair, "latex")


if __name__ == "__main__":
    serve(lambda request, _: _verdict(*request), forks=True, warm_up=_warm_up)
