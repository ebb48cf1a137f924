"""The child's half of `benchmarks.harness.peers`: answer JSON lines. Imports nothing of ramify."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def answer_lines(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer every line of standard input with one line; an exception becomes an answer with its name."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the parent decides what a failure of the peer means
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)
