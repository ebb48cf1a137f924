"""Killing every process that descends from this one. Standard library only."""

import contextlib
import os
import signal
import time
from pathlib import Path

_SECONDS = 2.0


def end_orphans() -> None:
    """Kill and reap all descendants of this process, for a bounded time.

    All are stopped first, until no new ones appear. If they were killed one by one, the others would go on forking.
    """
    stopped: set[int] = set()
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = _descendants()
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if found <= stopped else signal.SIGSTOP)
        stopped = found
        time.sleep(0.001)


def _descendants() -> set[int]:
    found: set[int] = set()
    pending = [os.getpid()]
    while pending:
        pid = pending.pop()
        with contextlib.suppress(OSError):
            children = {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
            pending.extend(children - found)
            found |= children
    return found
