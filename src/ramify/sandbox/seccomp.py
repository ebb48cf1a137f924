"""The system calls that a snippet may make: an allow list, compiled once to a BPF program.

Everything else fails with EPERM: new processes, programs and namespaces, sockets, signals to other processes, tracing,
mounts, modules, keys, BPF, io_uring, and shared memory that outlives the process.

Importing this module loads libseccomp. It raises ImportError or RuntimeError if that is missing.
"""

import contextlib
import errno
import fcntl
import functools
import os
import socket
import tempfile
import termios
from typing import Final

import pyseccomp

_FILES: Final = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2 dup3
flock fsync fdatasync ftruncate fallocate fadvise64 readahead sendfile copy_file_range splice tee
stat lstat fstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd
chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 symlink symlinkat umask statfs fstatfs
pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime
"""
_MEMORY: Final = "mmap munmap mprotect mremap madvise brk msync mincore membarrier get_mempolicy"
_THREADS: Final = """
futex futex_waitv set_robust_list rseq set_tid_address arch_prctl exit exit_group gettid getpid
getppid getpgrp getuid geteuid getgid getegid getgroups getresuid getresgid wait4 waitid
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack restart_syscall
pause alarm setitimer getitimer sched_yield sched_get_priority_max sched_get_priority_min getrlimit setrlimit
getrusage
"""
# Allowed only for the process itself: for another process they reveal whether it exists.
_ABOUT_ONESELF: Final = "getpgid getsid sched_getparam sched_getscheduler"
_CLOCKS: Final = """
nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times sysinfo uname getcpu getrandom
"""
# asyncio's event loop needs these. They can reach only the two ends of an unnamed socket pair.
_PAIRS: Final = "shutdown getsockname getpeername getsockopt"

_CLONE_THREAD = 0x00010000
_CLONE_NEW_ANYTHING = 0x7E020000
_SOCK_TYPE = 0xF
_ALL_FLAGS = 0xFFFFFFFF
_PAIR_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL | socket.MSG_WAITALL
_FIOCLEX, _FIONCLEX, _FIONREAD, _FIONBIO = 0x5451, 0x5450, 0x541B, 0x5421
# Without F_SETOWN and F_SETSIG: with them, I/O on a file can send any signal to any process.
_FCNTL_COMMANDS = (*range(8), *range(36, 39), fcntl.F_DUPFD_CLOEXEC)
"""Duplicating descriptors, flags, and the three kinds of locks."""
_PR_SET_NAME, _PR_GET_NAME = 15, 16


@functools.cache
def compile_filter() -> bytes:
    """Return the BPF program for this machine's processor."""
    calls = pyseccomp.SyscallFilter(defaction=pyseccomp.ERRNO(errno.EPERM))
    for name in f"{_FILES} {_MEMORY} {_THREADS} {_CLOCKS} {_PAIRS}".split():
        _add(calls, pyseccomp.ALLOW, name)
    for name in ("chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat"):
        # Landlock does not guard modes and times, so a snippet must not set them. Reporting success without doing it
        # keeps shutil.copy and tempfile working.
        _add(calls, pyseccomp.ERRNO(0), name)
    for name in ("listxattr", "llistxattr", "flistxattr", "getxattr", "lgetxattr", "fgetxattr"):
        _add(calls, pyseccomp.ERRNO(errno.ENOTSUP), name)  # shutil handles this error
    for name in ("clone3", "openat2"):
        # The C library falls back to the older call, whose arguments can be checked.
        _add(calls, pyseccomp.ERRNO(errno.ENOSYS), name)
    _add_checked(calls)
    with contextlib.suppress(OSError):  # libseccomp before 2.5 has no such option
        # A binary tree instead of a list: the kernel tests every system call when a child installs the filter.
        calls.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)
    with tempfile.TemporaryFile() as file:
        calls.export_bpf(file)
        file.seek(0)
        return file.read()


def _add_checked(calls: pyseccomp.SyscallFilter) -> None:
    """Allow some system calls, but only with certain arguments."""

    def allow(name: str, *checks: pyseccomp.Arg) -> None:
        _add(calls, pyseccomp.ALLOW, name, *checks)

    def bits(position: int, mask: int, value: int) -> pyseccomp.Arg:
        return pyseccomp.Arg(position, pyseccomp.MASKED_EQ, mask, value)

    def equals(position: int, value: int) -> pyseccomp.Arg:
        return pyseccomp.Arg(position, pyseccomp.EQ, value)

    for name, position in (("open", 1), ("openat", 2)):
        # Early versions of Landlock allow O_TRUNC on a file that is opened for reading.
        allow(name, bits(position, os.O_TRUNC, 0))
        allow(name, bits(position, os.O_ACCMODE, os.O_WRONLY))
        allow(name, bits(position, os.O_ACCMODE, os.O_RDWR))
    allow("clone", bits(0, _CLONE_THREAD | _CLONE_NEW_ANYTHING, _CLONE_THREAD))
    allow("socketpair", equals(0, socket.AF_UNIX), bits(1, _SOCK_TYPE, socket.SOCK_STREAM))
    for name in ("sendto", "recvfrom"):
        # Above all not MSG_OOB: out-of-band data on socket pairs is recent kernel code with a history of vulnerabilities.
        allow(name, bits(3, _ALL_FLAGS & ~_PAIR_FLAGS, 0), equals(4, 0))
    allow("prlimit64", equals(0, 0))
    for name in _ABOUT_ONESELF.split():
        allow(name, equals(0, 0))
    allow("sched_getaffinity", equals(0, 0))
    # The C library calls it for threads by number, and handles this error.
    _add(calls, pyseccomp.ERRNO(errno.ENOSYS), "sched_getaffinity", pyseccomp.Arg(0, pyseccomp.NE, 0))
    allow("getpriority", equals(1, 0))
    for command in _FCNTL_COMMANDS:
        allow("fcntl", equals(1, command))
    for option in (_PR_SET_NAME, _PR_GET_NAME):
        allow("prctl", equals(0, option))
    for request in (termios.TCGETS, termios.TIOCGWINSZ, _FIOCLEX, _FIONCLEX, _FIONREAD, _FIONBIO):
        allow("ioctl", equals(1, request))


def _add(calls: pyseccomp.SyscallFilter, action: int, name: str, *checks: pyseccomp.Arg) -> None:
    if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:  # not every processor has every call
        calls.add_rule(action, name, *checks)
