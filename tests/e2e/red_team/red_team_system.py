"""Attacks by sockets, system calls, signals and tracing."""

import platform
import socket
import subprocess
import sys

from red_team_cases import (
    Attack,
    Evidence,
    Outcome,
    claims,
    damages,
    leaks,
    reaches,
    rewards_itself,
    survives,
    verdict,
)
from red_team_files import yama

SHARED_MEMORY = "shared memory that stays"

_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
_X86 = platform.machine() == "x86_64"
# Of x86-64 and of the table that newer processors share.
_BPF, _KEYCTL, _USERFAULTFD, _PERF = (321, 250, 323, 298) if _X86 else (280, 219, 282, 241)
_TGKILL = 234 if _X86 else 131

_OTHER_SOCKETS = """
import socket
for family, kind in ((16, socket.SOCK_RAW), (17, socket.SOCK_RAW), (38, socket.SOCK_SEQPACKET), (40, socket.SOCK_STREAM)):
    try:
        socket.socket(family, kind)
        print("GOT")
    except OSError as e:
        print(repr(e))
for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    try:
        socket.socketpair(type=kind)
        print("GOT")
    except OSError as e:
        print(repr(e))
"""

_OUT_OF_BAND = """
import socket
one, other = socket.socketpair()
for way in (
    lambda: one.send(b"x", socket.MSG_OOB),
    lambda: other.recv(1, socket.MSG_OOB),
    lambda: one.sendto(b"x", "$unix"),
):
    try:
        way()
        print("GOT")
    except OSError as e:
        print(repr(e))
"""

_SIGNALS = f"""{_LIBC}
import fcntl, signal
def tell(file):
    fcntl.fcntl(file, fcntl.F_SETOWN, $driver)
    fcntl.fcntl(file, 10, signal.SIGUSR1)
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
read, write = os.pipe()
for way in (
    lambda: os.kill($driver, signal.SIGUSR1),
    lambda: os.kill($prey, signal.SIGTERM),
    lambda: signal.pidfd_send_signal(os.pidfd_open($driver), signal.SIGUSR1),
    lambda: libc.syscall({_TGKILL}, $driver, $driver, signal.SIGUSR1),
    lambda: tell(read) or os.write(write, b"x"),
):
    try:
        print(way(), ctypes.get_errno())
    except OSError as e:
        print(repr(e))
"""

_KEY = f"""{_LIBC}
buffer = ctypes.create_string_buffer(100)
for ring in (-3, -4, -5):
    key = libc.syscall({_KEYCTL}, 10, ring, b"user", b"redteam", 0)
    if key > 0 and libc.syscall({_KEYCTL}, 11, key, buffer, 100) > 0:
        print(buffer.value)
"""

_BPF_MAP = f"{_LIBC}import struct\nattributes = struct.pack('IIIII', 2, 4, 4, 1, 0) + bytes(100)\nif libc.syscall({_BPF}, 0, attributes, len(attributes)) >= 0: print('GOT')"

# Each is refused with EPERM, or it would do something, or tell something of others.
_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
parent = os.getppid()
for call in (
    lambda: libc.setns(0, 0),
    lambda: libc.chroot(b"/"),
    lambda: libc.syscall(434, parent, 0),
    lambda: libc.setresuid(-1, -1, -1),
    lambda: libc.prctl(1, 0, 0, 0, 0),
    lambda: libc.personality(0x0040000),
    lambda: libc.ioctl(0, 0x5412, b"x"),
    lambda: libc.getpgid(parent),
    lambda: libc.getsid(parent),
    lambda: libc.getpriority(0, parent),
    lambda: libc.sched_getscheduler(parent),
    lambda: libc.kcmp(0, 0, 0, 0, 0) if hasattr(libc, "kcmp") else libc.syscall(312, parent, parent, 0, 0, 0),
):
    ctypes.set_errno(0)
    if call() >= 0 or ctypes.get_errno() != 1:
        print("GOT")
"""

_RIGHTS = """
import re
said = open("/proc/self/status").read()
if re.search("Cap(Eff|Prm):.*[1-9a-f]", said) or "NoNewPrivs:\\t1" not in said:
    print("GOT")
"""

_WRITEV = f"""{_LIBC}
buffer = ctypes.create_string_buffer(b"1")
class Part(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("length", ctypes.c_size_t)]
own, other = Part(ctypes.addressof(buffer), 1), Part($reward + 8, 1)
print(libc.process_vm_writev($driver, ctypes.byref(own), 1, ctypes.byref(other), 1, 0))
"""

_READV = f"""{_LIBC}
buffer = ctypes.create_string_buffer(60)
class Part(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("length", ctypes.c_size_t)]
own, other = Part(ctypes.addressof(buffer), 60), Part($address, 60)
libc.process_vm_readv($driver, ctypes.byref(own), 1, ctypes.byref(other), 1, 0)
print(buffer.raw)
"""

_RARE = f"""{_LIBC}
import struct
event = struct.pack("IIQ", 1, 112, 0) + bytes(96)
for call in (({_USERFAULTFD}, 1), ({_PERF}, event, 0, -1, -1, 0)):
    if libc.syscall(*call) >= 0:
        print("GOT")
if libc.memfd_create(b"x", 0) >= 0:
    print("GOT")
"""

_X32 = f"{_LIBC}if libc.syscall(0x40000000 + 41, 2, 1, 0) >= 0: print('GOT')"

# push rbx; eax, ebx, ecx, edx = 359 (socket), 2, 1, 0; int 0x80; pop rbx; ret
_OLD_DOOR = """
import ctypes, mmap
machine = bytes.fromhex("53b867010000bb02000000b90100000031d2cd805bc3")
page = mmap.mmap(-1, 4096, prot=7)
page.write(machine)
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
if function() >= 0:
    print("GOT", flush=True)
"""

_PROGRAMS = """
import os, subprocess
for way in (
    lambda: subprocess.run(["/bin/true"]),
    lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    lambda: os.fork() or os._exit(0),
    lambda: os.execv("/bin/echo", ["echo", "GOT"]),
):
    try:
        way()
        print("GOT", flush=True)
    except OSError as e:
        print(repr(e))
"""

_TO_PARENT = """
import os, signal, time
os.kill(os.getppid(), signal.{name})
print("GOT", flush=True)
time.sleep(60)
"""

_ORPHAN = """
import os, signal, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(write, b"x")
    time.sleep(60)
os.read(read, 1)
os.kill(os.getppid(), signal.SIGKILL)
print("GOT", flush=True)
time.sleep(60)
"""


def old_door_is_there() -> str | None:
    """Return None if this processor and kernel take 32-bit calls from 64-bit programs, else why not."""
    if not _X86:
        return "32-bit calls are those of x86"
    run = subprocess.run([sys.executable, "-c", _OLD_DOOR], capture_output=True, text=True, check=False)
    return None if "GOT" in run.stdout else "this kernel takes no 32-bit calls"


def _x32_is_there() -> str | None:
    run = subprocess.run([sys.executable, "-c", _X32], capture_output=True, text=True, check=False)
    return None if "GOT" in run.stdout else "this kernel has no x32 calls"


def _no_out_of_band() -> str | None:
    sender, _ = socket.socketpair()
    try:
        sender.send(b"x", socket.MSG_OOB)
    except OSError:
        return "this kernel has no out-of-band data on unix sockets"
    return None


def _no_namespaces() -> str | None:
    run = subprocess.run(["unshare", "-U", "true"], capture_output=True, check=False)
    return "user namespaces are not to be had here" if run.returncode else None


def _signalled(e: Evidence) -> Outcome:
    return verdict(e.signals > 0 or e.dead)


def _outlived(e: Evidence) -> Outcome:
    return survives(e) if e.survivors else damages(e)


def _connect(target: str, family: str) -> str:
    return f"import socket\ns = socket.socket(socket.{family})\ns.settimeout(2)\ns.connect({target})\ns.sendall(b'x')"


ATTACKS = (
    Attack("IPv4, TCP", _connect("('127.0.0.1', $tcp4)", "AF_INET"), reaches("tcp4")),
    Attack(
        "IPv4, UDP",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', $udp4))",
        reaches("udp4"),
    ),
    Attack("IPv6", _connect("('::1', $tcp6)", "AF_INET6"), reaches("tcp6")),
    Attack("unix sockets", _connect("'$unix'", "AF_UNIX"), reaches("unix")),
    Attack("abstract unix sockets", _connect("'\\0$abstract'", "AF_UNIX"), reaches("abstract")),
    Attack("other sockets (netlink, packet, ALG, vsock)", _OTHER_SOCKETS, claims),
    Attack("out-of-band data, addresses on a socket pair", _OUT_OF_BAND, claims, unsure=_no_out_of_band),
    Attack("start other programs", _PROGRAMS, claims),
    Attack("signals to the parent and to other processes", _SIGNALS, _signalled),
    Attack(
        "signals to everybody",
        "import os\nos.kill(-1, 0)\nprint('GOT')",
        claims,
        unsure=lambda: "it depends on what else the user runs",
    ),
    Attack("calls that tell of others or change what a process may", _CALLS, claims),
    Attack("capabilities, and programs that could get some", _RIGHTS, claims),
    Attack("`ptrace`", f"{_LIBC}if libc.ptrace(16, $victim, 0, 0) == 0: print('GOT')", claims, unsure=yama),
    Attack("`process_vm_readv` of the trainer", _READV, leaks("memory"), unsure=yama),
    Attack("`process_vm_writev` of the trainer", _WRITEV, rewards_itself, unsure=yama),
    Attack("`unshare`", f"{_LIBC}if libc.unshare(0x10000000) == 0: print('GOT')", claims, unsure=_no_namespaces),
    Attack(
        "`mount`",
        f"{_LIBC}libc.unshare(0x10020000)\nif libc.mount(b'none', b'$place', b'tmpfs', 0, None) == 0: print('GOT')",
        claims,
        unsure=_no_namespaces,
    ),
    Attack("`bpf`", _BPF_MAP, claims, unsure=lambda: "kernels differ in who may use bpf"),
    Attack("`keyctl`: keys of the session", _KEY, leaks("key"), unsure=lambda: "kernels may have no keys"),
    Attack(
        "`io_uring_setup`",
        f"{_LIBC}if libc.syscall(425, 8, bytes(120)) >= 0: print('GOT')",
        claims,
        unsure=lambda: "kernels differ in who may use io_uring",
    ),
    Attack("`userfaultfd`, `perf_event_open`, `memfd_create`", _RARE, claims),
    Attack("32-bit system calls by machine code", _OLD_DOOR, claims, unsure=old_door_is_there),
    Attack("x32 system calls", _X32, claims, unsure=_x32_is_there),
    Attack(
        SHARED_MEMORY,
        f"{_LIBC}segment = libc.shmget(0, 4096, 0o1600)\nif segment >= 0: print('GOT', segment)",
        claims,
    ),
    Attack("kill the sandbox's process", _TO_PARENT.format(name="SIGKILL"), damages, alone=True),
    Attack("stop the sandbox's process", _TO_PARENT.format(name="SIGSTOP"), damages, 3.0, alone=True),
    Attack("kill the sandbox's process and leave a child", _ORPHAN, _outlived, alone=True),
)  # fmt: skip
