"""System calls for which Python has no function, and Landlock rules. Standard library only.

A call that fails raises a JailError.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
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
    """Make a system call; `name` is for the error."""
    widened = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(name, _libc.syscall(ctypes.c_long(number), *widened))


def prctl(option: int, argument: int, second: int = 0) -> None:
    """Change a property of this process."""
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
    """Bind this process to Landlock rules, for good."""
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
        """Give up all other capabilities, for good."""
        if _libc.capset(self._header, self._sets) < 0:
            raise JailError(f"capset: {os.strerror(ctypes.get_errno())}")


def advise(address: int, size: int, advice: int) -> bool:
    """Call `madvise`; return True if the kernel followed the advice."""
    result: int = _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)
    return result == 0


def num_tasks() -> int:
    """Return the number of tasks on the whole machine."""
    answer = ctypes.create_string_buffer(256)
    _checked("sysinfo", _libc.sysinfo(answer))
    number: int = struct.unpack_from("=H", answer, _SYSINFO_TASKS)[0]
    return number


def unshare(flags: int) -> None:
    """Move this process to new namespaces."""
    _checked("unshare", _libc.unshare(flags))


def set_host_name(name: str) -> None:
    """Set the host name in this namespace."""
    _checked("sethostname", _libc.sethostname(name.encode(), len(name)))


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount a file system, or bind-mount one path at another."""
    texts = [text if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _checked(f"mount {target}", result)


def restrict_mount(target: str, attributes: int, whole_tree: bool) -> None:
    """Add attributes to a mount, or to the mount and all below it."""
    values = struct.pack("=4Q", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if whole_tree else 0
    path = os.fsencode(target)
    system_call(f"mount_setattr {target}", _MOUNT_SETATTR, _AT_FDCWD, path, flags, values, len(values))


def become_root(folder: str) -> None:
    """Make a mount the root of this mount namespace, and unmount the old root."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise JailError(f"pivot_root: its number on {os.uname().machine} is not known")
    os.chdir(folder)
    system_call("pivot_root", number, b".", b".")
    _checked("umount", _libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


_CREATE_RULESET, _ADD_RULE = 444, 445
_RULE_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEVICE, _REFER = 2, 4, 8, 1 << 14, 1 << 15, 1 << 13
_MAKE_AND_REMOVE = 16 | 32 | 128 | 256 | 4096
"""Remove folders and files; make folders, files and symbolic links."""
_ALL_OF_ABI_1 = (1 << 13) - 1


class Landlock:
    """The files that a process may still open: one ruleset for each folder that snippets run in, which a child only applies."""

    def __init__(self, readable: Sequence[str], hidden: Sequence[str]) -> None:
        """Open the paths that every snippet may read.

        Args:
            readable: Files, and folders with everything below them.
            hidden: Folders below those. They can be listed, but nothing in them can be read.

        Raises:
            JailError: The kernel has no Landlock.
        """
        try:
            self._abi = system_call("Landlock", _CREATE_RULESET, None, 0, 1)
        except JailError:
            raise JailError("Landlock is not available") from None
        self._rules: list[tuple[int, int]] = []
        for path in readable:
            self._add(path, hidden)

    def _add(self, path: str, hidden: Sequence[str]) -> None:
        """Allow one path. A rule covers everything below a folder, so beside a hidden folder each sibling gets a rule."""
        rights = _READ_FILE | (_READ_DIR if Path(path).is_dir() else 0)
        if path == "/dev/null":
            rights |= _WRITE_FILE
        if any(folder.startswith(f"{path}/") for folder in hidden):
            rights = _READ_DIR
            with os.scandir(path) as entries:
                # The target of a link is allowed at its own path, or not at all.
                below = [
                    entry.path for entry in entries if not entry.is_symlink() and entry.path not in hidden
                ]
            for child in below:
                self._add(child, hidden)
        self._rules.append((os.open(path, os.O_PATH | os.O_CLOEXEC), rights))

    def rules_for(self, folder: str) -> int:
        """Return the descriptor of a ruleset: write `folder`, read the readable paths, nothing else."""
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
        rules = system_call("Landlock", _CREATE_RULESET, attributes, size, 0)
        own = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        for descriptor, rights in (*self._rules, (own, writable)):
            rule = struct.pack("=Qi", rights, descriptor)
            system_call("Landlock", _ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
        os.close(own)
        return rules

    def close(self) -> None:
        """Close the readable paths; to be called once every folder has its ruleset."""
        for descriptor, _ in self._rules:
            os.close(descriptor)
        self._rules.clear()
