"""What a snippet's process does to itself before it runs foreign code. Standard library only.

Level 0: resource limits, no capabilities. Level 1: + seccomp. Level 2: + Landlock. At level 0 and 1 the file
system, with what /proc tells of the user's processes, is as open as the user's permissions make it; from level 2 on only the snippet's own folder can be
written and only the interpreter's installation and the system's libraries can be read (existence and metadata
of other files stay visible).
"""

import contextlib
import ctypes
import math
import os
import resource
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_PR_SET_CHILD_SUBREAPER = 36
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_M_ARENA_MAX = -8

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEVICE, _REFER = 2, 4, 8, 1 << 14, 1 << 15, 1 << 13
_MAKE_AND_REMOVE = 16 | 32 | 128 | 256 | 4096
"""Remove folders and files; make folders, files and symbolic links."""
_ALL_OF_ABI_1 = (1 << 13) - 1

_READABLE = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")

_LONELY_UID, _MAX_PID = 0x60000000, 1 << 22


class JailError(Exception):
    """A part of the jail could not be put up; nothing may run then."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one snippet may use.

    Attributes:
        memory_bytes: Address space.
        file_bytes: Size of each file that it writes.
        output_bytes: What is kept of each of its two streams; at 16 times as much it is killed.
        num_files: Open files.
        num_processes: Threads (and processes, at level 0).
    """

    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    output_bytes: int = 64 << 10
    num_files: int = 64
    num_processes: int = 128


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


class Jail:
    """The jail of one level, prepared in the zygote; `enter` is called in each forked child."""

    def __init__(self, level: int, limits: Limits, seccomp_program: bytes) -> None:
        self.level = level
        self.limits = limits
        self._has_lonely_uids = _owns_lonely_uids()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._instructions = ctypes.create_string_buffer(seccomp_program, len(seccomp_program))
        self._abi = self._landlock_abi() if level >= 2 else 0
        if level >= 2 and self._abi < 1:
            raise JailError("Landlock is not available")
        self._rules = self._open_readable() if level >= 2 else []

    def prepare_zygote(self) -> None:
        """Make the zygote a poor target: unreadable to its children, their foster parent, first to be out of memory."""
        if sys.platform != "linux":
            return
        if hasattr(self._libc, "mallopt"):
            # Each thread would else reserve 64 MiB of the address space that a snippet may use.
            self._libc.mallopt(_M_ARENA_MAX, 1)
        with contextlib.suppress(OSError):  # a container may mount /proc read-only; this one is a courtesy
            Path("/proc/self/oom_score_adj").write_text("1000")
        self._prctl(_PR_SET_DUMPABLE, 0)
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def enter(self, folder: str, timeout_seconds: float, zygote: int) -> None:
        """Give up everything but `folder` and the limits, for good; end when the process `zygote` does.

        Raises:
            JailError: A part that the level promises failed.
        """
        if sys.platform == "linux":
            # With a user id of its own only the snippet's tasks count; else those of the user's other programs
            # do too, and the limit lies above all tasks of the machine.
            others = 0 if self._has_lonely_uids else _num_tasks()
            self._drop_privileges()
            _set_limit(resource.RLIMIT_AS, self.limits.memory_bytes)
            _set_limit(resource.RLIMIT_NPROC, self.limits.num_processes + others)
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != zygote:
            raise JailError("the zygote has ended")
        self._limit(timeout_seconds)
        if self.level >= 2:
            self._restrict_files(folder)
        if self.level >= 1:
            program = _Program(len(self._instructions) // 8, ctypes.addressof(self._instructions))
            self._prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))

    def _drop_privileges(self) -> None:
        if self._has_lonely_uids:
            # RLIMIT_NPROC counts by real user id and never binds root's; the effective id has to stay because
            # the interpreter may lie in root's home.
            os.setresuid(_LONELY_UID + os.getpid(), 0, 0)
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        if self._libc.capset(header, bytes(24)) != 0:
            raise JailError(f"capset: {os.strerror(ctypes.get_errno())}")
        self._prctl(_PR_SET_NO_NEW_PRIVS, 1)

    def _limit(self, timeout_seconds: float) -> None:
        cpu_seconds = 2 * math.ceil(timeout_seconds) + 1
        # The soft limit's signal tells a time limit from other kills.
        _set_limit(resource.RLIMIT_CPU, cpu_seconds, spare=1)
        _set_limit(resource.RLIMIT_FSIZE, self.limits.file_bytes)
        _set_limit(resource.RLIMIT_NOFILE, self.limits.num_files)
        _set_limit(resource.RLIMIT_CORE, 0)

    def _landlock_abi(self) -> int:
        if sys.platform != "linux":
            return 0
        version: int = self._libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
        return version

    def _open_readable(self) -> list[tuple[int, int]]:
        """Open the places that every snippet may read; pairs of descriptor and rights."""
        library = str(Path(os.__file__).parent)
        rules = []
        for path in (*_READABLE, library, f"{sys.base_prefix}/lib", *_DEVICES):
            if not Path(path).exists():
                continue
            rights = _READ_FILE | (_READ_DIR if Path(path).is_dir() else 0)
            if path == "/dev/null":
                rights |= _WRITE_FILE
            rules.append((os.open(path, os.O_PATH | os.O_CLOEXEC), rights))
        return rules

    def _restrict_files(self, folder: str) -> None:
        handled, writable = _ALL_OF_ABI_1, _READ_FILE | _WRITE_FILE | _READ_DIR | _MAKE_AND_REMOVE
        for abi, right in ((2, _REFER), (3, _TRUNCATE)):
            if self._abi >= abi:
                handled, writable = handled | right, writable | right
        if self._abi >= 5:
            handled |= _IOCTL_DEVICE
        network = 3 if self._abi >= 4 else 0
        scopes = 3 if self._abi >= 6 else 0
        attributes = struct.pack("=QQQ", handled, network, scopes)
        size = 24 if self._abi >= 6 else 16 if self._abi >= 4 else 8
        ruleset = self._syscall(_LANDLOCK_CREATE_RULESET, attributes, size, 0)
        own = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        for descriptor, rights in (*self._rules, (own, writable)):
            rule = struct.pack("=Qi", rights, descriptor)
            self._syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
        self._syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)

    def _prctl(self, option: int, argument: int, second: int = 0) -> None:
        values = [ctypes.c_ulong(value) for value in (argument, second, 0, 0)]
        if self._libc.prctl(option, *values) != 0:
            raise JailError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")

    def _syscall(self, number: int, *arguments: int | bytes) -> int:
        widened = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
        result: int = self._libc.syscall(number, *widened)
        if result < 0:
            raise JailError(f"system call {number}: {os.strerror(ctypes.get_errno())}")
        return result


def _set_limit(kind: int, value: int, spare: int = 0) -> None:
    ceiling = resource.getrlimit(kind)[1]
    soft, hard = value, value + spare
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def _num_tasks() -> int:
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])


def _owns_lonely_uids() -> bool:
    """Whether this is root in a user namespace that maps the ids that snippets get."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _LONELY_UID and first + count > _LONELY_UID + _MAX_PID:
            return True
    return False
