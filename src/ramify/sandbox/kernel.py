"""System calls for which Python has no function. Standard library only."""

import ctypes
import os
import struct
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
PR_SET_CHILD_SUBREAPER = 36
SECCOMP_MODE_FILTER = 2

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_SETATTR = 442
"""Like all system calls added since 2019, it has the same number on every processor."""
_LANDLOCK_RESTRICT_SELF = 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_CAPABILITY_VERSION_3 = 0x20080522
_M_ARENA_MAX = -8
_SYSINFO_TASKS = 80
"""Offset of the number of tasks in `struct sysinfo`, on 64-bit machines."""

_libc: Any = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    # Declared argument types avoid creating objects for the conversion; children call these functions.
    _libc.prctl.argtypes = [ctypes.c_int, *4 * [ctypes.c_ulong]]
    _short_call = _libc["syscall"]
    _short_call.argtypes = [ctypes.c_long, *2 * [ctypes.c_ulong]]
    _libc.capset.argtypes = 2 * [ctypes.c_void_p]


class JailError(Exception):
    """A part of the jail could not be set up, so no snippet may run."""


def _checked(name: str, result: int) -> int:
    if result < 0:
        raise JailError(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def system_call(name: str, number: int, *arguments: int | bytes | None) -> int:
    """Make a system call; `name` is for the error.

    Raises:
        JailError: It failed.
    """
    widened = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(name, _libc.syscall(ctypes.c_long(number), *widened))


def prctl(option: int, argument: int, second: int = 0) -> None:
    """Change a property of this process.

    Raises:
        JailError: It failed.
    """
    if _libc.prctl(option, argument, second, 0, 0) < 0:
        raise JailError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def forbid_inspection() -> None:
    """Stop other programs of the same user from tracing this process or reading its memory and environment.

    `/proc/PID/environ`, `/proc/PID/mem`, `ptrace` and `process_vm_readv` then need CAP_SYS_PTRACE. A program that this
    process starts is not protected until it calls this itself. Linux only.
    """
    if sys.platform == "linux":
        prctl(PR_SET_DUMPABLE, 0)


def restrict_self(rules: int) -> None:
    """Bind this process to Landlock rules, for good.

    Raises:
        JailError: The kernel refused.
    """
    _checked("Landlock", _short_call(_LANDLOCK_RESTRICT_SELF, rules, 0))


class Capabilities:
    """A set of capabilities, prepared so that `keep` is one system call.

    Args:
        mask: One bit for each capability.
    """

    def __init__(self, mask: int) -> None:
        low, high = mask & 0xFFFFFFFF, mask >> 32
        words = struct.pack("=Ii6I", _CAPABILITY_VERSION_3, 0, low, low, 0, high, high, 0)
        self._buffer = ctypes.create_string_buffer(words, len(words))
        self._header = ctypes.addressof(self._buffer)
        self._sets = self._header + 8

    def keep(self) -> None:
        """Give up all other capabilities, for good.

        Raises:
            JailError: It failed.
        """
        if _libc.capset(self._header, self._sets) < 0:
            raise JailError(f"capset: {os.strerror(ctypes.get_errno())}")


def use_one_arena() -> None:
    """Stop each thread from reserving 64 MiB of the snippet's address space for a malloc arena of its own."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 1)


def advise(address: int, size: int, advice: int) -> bool:
    """Call `madvise`; returns whether the kernel followed the advice."""
    result: int = _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)
    return result == 0


def num_tasks() -> int:
    """The number of tasks on the whole machine."""
    answer = ctypes.create_string_buffer(256)
    _checked("sysinfo", _libc.sysinfo(answer))
    number: int = struct.unpack_from("=H", answer, _SYSINFO_TASKS)[0]
    return number


def unshare(flags: int) -> None:
    """Move this process to new namespaces.

    Raises:
        JailError: It failed.
    """
    _checked("unshare", _libc.unshare(flags))


def set_host_name(name: str) -> None:
    """Set the host name in this namespace.

    Raises:
        JailError: It failed.
    """
    _checked("sethostname", _libc.sethostname(name.encode(), len(name)))


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount a file system, or bind-mount one path at another.

    Raises:
        JailError: It failed.
    """
    texts = [text if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _checked(f"mount {target}", result)


def restrict_mount(target: str, attributes: int, whole_tree: bool) -> None:
    """Add attributes to a mount, or to the mount and all below it.

    Raises:
        JailError: It failed.
    """
    values = struct.pack("=4Q", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if whole_tree else 0
    path = os.fsencode(target)
    system_call(f"mount_setattr {target}", _MOUNT_SETATTR, _AT_FDCWD, path, flags, values, len(values))


def become_root(folder: str) -> None:
    """Make a mount the root of this mount namespace, and unmount the old root.

    Raises:
        JailError: It failed.
    """
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise JailError(f"pivot_root: its number on {os.uname().machine} is not known")
    os.chdir(folder)
    system_call("pivot_root", number, b".", b".")
    _checked("umount", _libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
