r"""The process in which math-verify reads and compares formulas, since one of them may never end or take all memory.

First line in: the address space in bytes; out: "null" when it is ready. Then one JSON array a line comes in,
[prediction, gold, "latex" | "bare"], and true, false or null (one side cannot be read) goes out. It ends when its
input does.
"""

import json
import os
import resource
import sys
from typing import BinaryIO

from ramify.sandbox.kernel import forbid_inspection

_WARM_UP = (r"\frac{x^2-1}{x-1}+\sqrt{8}", r"\left\{1,\pi\right\}", r"\sin(x) \le 2", "1/2")


def main() -> None:
    """Serve standard input."""
    forbid_inspection()
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # Nothing that a library prints may be taken for an answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _limit(int(requests.readline()))
    for text in _WARM_UP:
        _compare(text, text, "latex")
    _send(answers, None)
    for line in requests:
        _send(answers, _compare(*json.loads(line)))


def _send(answers: BinaryIO, answer: bool | None) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _limit(memory_bytes: int) -> None:
    """Bound memory and forbid files to be written; a bomb then ends in an exception or in this process alone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _compare(prediction: str, gold: str, how: str) -> bool | None:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # By default it looks for plain numbers too where it cannot read the formula.
    kinds = [LatexExtractionConfig()] if how == "latex" else [LatexExtractionConfig(), ExprExtractionConfig()]
    if how == "latex":
        prediction, gold = f"${prediction}$", f"${gold}$"
    try:
        # Its own time limits need signals; the caller's clock is the only one.
        left, right = (parse(text, kinds, parsing_timeout=None) for text in (prediction, gold))
        # It asks for the gold first; Tool-Star, whose reading "bare" is, gives it the prediction there.
        first, second = (left, right) if how == "bare" else (right, left)
        return bool(verify(first, second, timeout_seconds=None)) if left and right else None
    except Exception:  # noqa: BLE001 - whatever a formula breaks in the libraries, it is not equal
        return None


if __name__ == "__main__":
    main()
