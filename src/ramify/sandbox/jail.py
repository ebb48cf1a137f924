"""The jail that a snippet's process enters before it runs foreign code. Standard library only.

Level 0: resource limits, no capabilities. Level 1: + seccomp. Level 2: + Landlock. At levels 0 and 1 a snippet can
read and write whatever the user can, and see the user's processes in /proc. From level 2 on it can write only its own
folder, and read only the interpreter's installation and the system's libraries. Levels 3 and 4 also confine the zygote:
see `namespaces` and `launch`.

A child does as little as possible, since each page that it writes to is copied first. Whatever children can inherit is
done once, in the zygote.
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

from ramify.sandbox import kernel
from ramify.sandbox.kernel import JailError
from ramify.sandbox.namespaces import SPARE_UID, has_spare_uids

_CAP_KILL, _CAP_SETUID = 1 << 5, 1 << 7
_SIGKILL = int(signal.SIGKILL)
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one snippet.

    Attributes:
        memory_bytes: Address space.
        file_bytes: Size of each file that it writes.
        folder_bytes: Total size of its files. Holds from level 3 on, where the files are in memory.
        output_bytes: Bytes returned of each output stream; a snippet that writes 16 times as much is killed.
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
        """Also apply to this process (the zygote) all limits that children inherit."""
        self.level = level
        self.limits = limits
        self._linux = sys.platform == "linux"
        self._has_spare_uids = has_spare_uids()
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
        """Protect the zygote: children cannot inspect it, it inherits their orphans, and it has few rights."""
        kernel.forbid_inspection()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        rights = _CAP_SETUID if self._has_spare_uids else 0
        if self._has_spare_uids and self.level == 0:
            # A child that starts another program shares no user id with the zygote, which must still be able to kill it.
            rights |= _CAP_KILL
        kernel.Capabilities(rights).keep()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)

    def processor_seconds(self, timeout_seconds: float) -> tuple[int, int]:
        """Return soft and hard limit of a snippet's CPU time; the soft limit's signal distinguishes a timeout from other kills."""
        soft = min(2 * math.ceil(timeout_seconds) + 1, self._most_seconds)
        return soft, min(soft + 1, self._most_seconds)

    def enter(self, rules: int | None, processor_seconds: tuple[int, int], zygote: int) -> None:
        """Confine this process for good; it will die with its zygote.

        Args:
            rules: Descriptor of its Landlock ruleset; None below level 2.
            processor_seconds: Soft and hard limit of CPU time.
            zygote: Process id of the zygote.

        Raises:
            JailError: A protection that the level promises failed.
        """
        if self._has_spare_uids:
            # RLIMIT_NPROC counts by real user id, and never binds root. With a user id of its own only the snippet's
            # tasks count. The effective id stays root's, because the interpreter may lie in root's home.
            os.setresuid(SPARE_UID + os.getpid(), 0, 0)
            self._no_capabilities.keep()
        elif self._linux:
            # The user's other programs count too, so the limit is set above the number of tasks on the machine.
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
    """Ask the kernel to kill this process and its children first when the machine runs out of memory."""
    with contextlib.suppress(OSError):  # a container may mount /proc read-only; the protection is optional
        Path("/proc/self/oom_score_adj").write_text("1000")


def _both(kind: int, value: int) -> tuple[int, int]:
    """Return `value` as soft and hard limit, or the current hard limit if that is lower."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        value = min(value, ceiling)
    return value, value
