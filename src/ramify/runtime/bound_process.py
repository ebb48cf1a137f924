"""Child processes that end with this one, even if it is killed: a server, a training run."""

import os
from collections.abc import Sequence
from pathlib import Path

_GUARD = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("ramify is gone")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Runs in the child's own Python, before the program: a signal when the parent ends (PR_SET_PDEATHSIG), kept through exec."""


def bound_command(python: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs Python with these arguments and gets SIGTERM when the thread that starts it ends (Linux)."""
    return [str(python), "-c", _GUARD, str(os.getpid()), *arguments]
