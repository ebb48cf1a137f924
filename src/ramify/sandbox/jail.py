"""What a snippet's process does to itself before it runs foreign code. Standard library only.

Level 0: resource limits, no capabilities. Level 1: + seccomp. Level 2: + Landlock. At level 0 and 1 the file
system, with what /proc tells of the user's processes, is as open as the user's permissions make it; from level 2 on
only the snippet's own folder can be written and only the interpreter's installation and the system's libraries can
be read. Levels 3 and 4 add what surrounds the zygote: `namespaces`, `bubblewrap`.

A child's work is kept small, since each page that it writes to is copied first: what children can inherit is done
once, in the zygote.
"""

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from ramify.sandbox import kernel, uids
from ramify.sandbox.kernel import JailError

_CAP_KILL, _CAP_SETUID = 1 << 5, 1 << 7
_SIGKILL = int(signal.SIGKILL)
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """What one snippet may use.

    Attributes:
        memory_bytes: Address space.
        file_bytes: Size of each file that it writes.
        folder_bytes: Size of all its files, from level 3 on. They are kept in memory there.
        output_bytes: What is kept of each of its two streams; at 16 times as much it is killed.
        num_files: Open files.
        num_processes: Threads (and processes, at level 0).
    """

    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    folder_bytes: int = 64 << 20
    output_bytes: int = 64 << 10
    num_files: int = 64
    num_processes: int = 128


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


class Jail:
    """The jail of one level, prepared in the zygote; `enter` is called in each forked child."""

    def __init__(self, level: int, limits: Limits, seccomp_program: bytes) -> None:
        """Limit this process too, where its children inherit that."""
        self.level = level
        self.limits = limits
        self._linux = sys.platform == "linux"
        self._has_spare_uids = uids.has_spare()
        self._instructions = ctypes.create_string_buffer(seccomp_program, len(seccomp_program))
        self._program = _Program(len(seccomp_program) // 8, ctypes.addressof(self._instructions))
        self._program_address = ctypes.addressof(self._program)
        self._no_capabilities = kernel.Capabilities(0)
        if self._linux:
            self._prepare_zygote()
        for kind, value in ((resource.RLIMIT_FSIZE, limits.file_bytes), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(kind, _both(kind, value))
        own = {resource.RLIMIT_NOFILE: limits.num_files}
        if self._linux:
            own[resource.RLIMIT_AS] = limits.memory_bytes
        if self._has_spare_uids:
            own[resource.RLIMIT_NPROC] = limits.num_processes
        self._own_limits = [(kind, _both(kind, value)) for kind, value in own.items()]
        self._most_tasks = _both(resource.RLIMIT_NPROC, _ENDLESS)[1] if self._linux else 0
        self._most_seconds = _both(resource.RLIMIT_CPU, _ENDLESS)[1]

    def _prepare_zygote(self) -> None:
        """Make the zygote a poor target: unreadable to its children, their foster parent, with few rights."""
        kernel.forbid_inspection()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        rights = _CAP_SETUID if self._has_spare_uids else 0
        if self._has_spare_uids and self.level == 0:
            # A child that starts another program has no id left in common with the zygote, which has to end it.
            rights |= _CAP_KILL
        kernel.Capabilities(rights).keep()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)

    def processor_seconds(self, timeout_seconds: float) -> tuple[int, int]:
        """The soft and the hard limit of a snippet's processor time; the soft one's signal tells it from other kills."""
        soft = min(2 * math.ceil(timeout_seconds) + 1, self._most_seconds)
        return soft, min(soft + 1, self._most_seconds)

    def enter(self, rules: int | None, processor_seconds: tuple[int, int], zygote: int) -> None:
        """Give up everything but what `rules` and the limits leave, for good; end when the process `zygote` does.

        Raises:
            JailError: A part that the level promises failed.
        """
        if self._has_spare_uids:
            # RLIMIT_NPROC counts by real user id and never binds root's; the effective id has to stay because the
            # interpreter may lie in root's home. With an id of its own only the snippet's tasks count.
            os.setresuid(uids.SPARE + os.getpid(), 0, 0)
            self._no_capabilities.keep()
        elif self._linux:
            # The user's other programs count too, and the limit lies above all tasks of the machine.
            most = min(self.limits.num_processes + kernel.num_tasks(), self._most_tasks)
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        if self._linux:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != zygote:
            raise JailError("the zygote has ended")
        for kind, pair in self._own_limits:
            resource.setrlimit(kind, pair)
        resource.setrlimit(resource.RLIMIT_CPU, processor_seconds)
        if rules is not None:
            kernel.restrict_self(rules)
        if self.level >= 1:
            kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, self._program_address)


def volunteer_when_memory_ends() -> None:
    """Have the kernel end this process and its children first when the machine runs out of memory."""
    with contextlib.suppress(OSError):  # a container may mount /proc read-only; this is a courtesy
        Path("/proc/self/oom_score_adj").write_text("1000")


def _both(kind: int, value: int) -> tuple[int, int]:
    """The soft and the hard limit: `value`, or the limit that holds already if that is lower."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        value = min(value, ceiling)
    return value, value
