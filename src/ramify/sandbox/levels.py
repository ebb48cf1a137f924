"""Finds the isolation level of this machine by running a program that tries to break out.

L0: a new interpreter for each program, with resource limits, an empty environment and its own folder; it is killed with
all its children. L1: + seccomp, forked from a clean zygote. L2: + Landlock. L3: + namespaces and a root of the zygote's
own. L4: level 2 inside bubblewrap, which works on some machines that do not allow level 3.
"""

import functools
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ramify.core.errors import ConfigError, MachineError
from ramify.core.protocols import SandboxStatus
from ramify.sandbox import frames, launch
from ramify.sandbox.kernel import JailError
from ramify.sandbox.launch import everything, read_answer
from ramify.sandbox.program_setup import PREAMBLE_KEY, ProgramSetup

MAX_LEVEL = 4
FIRST_GUARDED = 2
"""Below this level a program can read and write whatever its user can."""
_PROBE_SECONDS = 10.0
_SETUP_SECONDS = 60.0

_PROBE = """
import os, socket, tempfile

def denied(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return True
    return False

level = 0
if denied(socket.socket) and denied(os.fork) and denied(os.kill, os.getppid(), 0):
    level = 1
    if denied(os.listdir, "/") and denied(open, "/proc/self/environ") and denied(os.mkdir, "../probe"):
        level = 2
        hidden = HIDDEN
        if os.uname().nodename == "sandbox" and not any(map(os.path.exists, hidden)):
            level = 4
with open("probe", "w") as file:
    file.write("x")
print("level", level)
"""

_HIDDEN = ("/proc/self", "/etc/passwd", "/home", "/bin")


def detect_level(at_most: int = MAX_LEVEL) -> int:
    """Return the highest level up to `at_most` that works here, tested in child processes.

    Raises:
        MachineError: Not even level 0 works.
    """
    reasons = []
    for level in range(min(at_most, MAX_LEVEL), -1, -1):
        reason = why_not(level)
        if reason is None:
            return level
        reasons.append(f"L{level}: {reason}")
    raise MachineError(
        f"sandbox: no level works on this machine ({'; '.join(reasons)}). Where a program did not end in time, try again when the "
        "machine is less busy."
    )


def shortfall(required: int, reached: int) -> str:
    """Return a line with what this machine lacks for the level `required`, and how to accept the level it reaches."""
    missing = (why_not(reached + 1) if reached < MAX_LEVEL else None) or "it was not tried"
    careful = ", which guards against accidents, not against attacks" if reached < FIRST_GUARDED else ""
    return (
        f"sandbox.min_level = {required}: this machine reaches level {reached} (not level {reached + 1}: {missing}). "
        f"Set sandbox.min_level = {reached} to accept that level{careful}."
    )


@functools.cache
def why_not(level: int) -> str | None:
    """Try one level. Return None if it works, else what is missing; the result is cached."""
    return _why_not(launch.Start(level), _PROBE_SECONDS)


def try_setup(level: int, setup: ProgramSetup) -> float:
    """Start a process with a setup, check that its programs are confined as without it, and return the seconds that it took.

    Raises:
        ConfigError: It does not start within a minute, or a program can break out.
    """
    begin = time.monotonic()
    reason = _why_not(launch.Start(level, packages=everything(setup)), _SETUP_SECONDS)
    if reason is not None:
        what = (
            ""
            if reason.startswith("tools.python.")
            else "tools.python: no program can start with its setup: "
        )
        is_slow = time.monotonic() - begin >= _SETUP_SECONDS
        hint = f". Shorten {PREAMBLE_KEY}." if is_slow and setup.preamble else ""
        raise ConfigError(f"{what}{' '.join(reason.split())}{hint}")
    return time.monotonic() - begin


def _why_not(start: launch.Start, seconds: float) -> str | None:
    level = start.level
    try:
        program = seccomp_program(level)
    except (ImportError, RuntimeError, OSError) as error:
        return f"seccomp: {error}"
    folder = launch.new_folder_path()
    try:
        Path(folder).mkdir(mode=0o700)
        return _try(start, program, folder, seconds)
    except OSError as error:
        return f"no process could be started: {error.strerror}"
    except JailError as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _try(start: launch.Start, program: bytes, base: str, seconds: float) -> str | None:
    process = subprocess.Popen(
        start.command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=launch.ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        reason = _try_out(process, start.settings(program, base), start.packages.folders)
        is_late = reason is not None and timer.finished.is_set()
        return f"no trial program ended within {seconds:g} s" if is_late else reason
    finally:
        process.kill()
        process.communicate()
        timer.cancel()


def seccomp_program(level: int) -> bytes:
    """Return the seccomp program of a level, compiled once; empty at level 0.

    Raises:
        ImportError: pyseccomp is not installed.
        RuntimeError: libseccomp is not installed.
    """
    if level == 0:
        return b""
    from ramify.sandbox.seccomp import compile_filter  # only here: it loads libseccomp

    return compile_filter()


def _try_out(
    process: "subprocess.Popen[bytes]", settings: dict[str, Any], shown: Sequence[str]
) -> str | None:
    assert process.stdin is not None
    assert process.stdout is not None
    hidden = [path for path in _HIDDEN if not any(folder.startswith(f"{path}/") for folder in shown)]
    request = frames.request(0, _PROBE.replace("HIDDEN", repr(hidden)), _PROBE_SECONDS / 2)
    try:
        process.stdin.write(frames.encode(settings) + request)
        process.stdin.flush()
        ready, _ = _read(process.stdout)
        if not ready["ready"]:
            return str(ready["reason"])
        head, body = _read(process.stdout)
        while "status" not in head:
            head, body = _read(process.stdout)
    except (EOFError, OSError):
        lines = (process.communicate()[1] or b"").decode(errors="replace").strip().splitlines()
        return f"the sandbox process died ({lines[-1]})" if lines else "the sandbox process died"
    result = read_answer(head, body, settings["level"])
    if result.status is not SandboxStatus.OK:
        last = (result.stderr.splitlines() or [result.status])[-1]
        return f"the trial program failed: {last}"
    reached = int(result.stdout.split()[-1])
    return None if reached >= settings["level"] else "the trial program broke out"


def _read(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    prefix = stream.read(frames.PREFIX_BYTES)
    if len(prefix) < frames.PREFIX_BYTES:
        raise EOFError
    head_bytes, body_bytes = frames.lengths(prefix)
    return frames.decode(stream.read(head_bytes)), stream.read(body_bytes)
