"""Processes of this machine as tests look at them: what runs below another one, and what has ended."""

import contextlib
import os
import time
from pathlib import Path


def children(pid="self"):
    """Return the ids of a process's children; none if it has ended."""
    pids = set()
    for tasks in Path(f"/proc/{pid}").glob("task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids.update(map(int, tasks.read_text().split()))
    return pids


def descendants():
    """Return the ids of all processes below this one."""
    pids, pending = set(), [os.getpid()]
    while pending:
        new = children(pending.pop())
        pids |= new
        pending.extend(new)
    return pids


def is_running(pid):
    """Return False for a process that has ended, though its parent may not have noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=120.0):
    """Return the first true value of `condition()`; fail when there is none within `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.01)
    return value
