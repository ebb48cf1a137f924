"""Attacks on the machine: programs that do not end, that multiply, or that take all there is."""

from red_team_cases import Attack, Evidence, Outcome, claims, ends_as, multiplies, survives, verdict

from ramify.core.protocols import SandboxStatus

_FORKS = """
import os, time
born, refused = 1, 0
while born < $many and refused < 20:
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        born += 1
    except OSError as e:
        refused += 1
        time.sleep(0.005)
print("GOT" if born >= $many else "refused", born)
"""

_SESSIONS = _FORKS.replace("time.sleep(30)", "os.setsid()\n            time.sleep(30)")

_THREADS = """
import threading, time
threading.stack_size(1 << 16)
born = 1
try:
    while born < $many:
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        born += 1
except RuntimeError as e:
    print(repr(e))
print("GOT" if born >= $many else "refused", born)
"""

_GRANDCHILD = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    if os.fork() == 0:
        # Another program, which may get another user's id; it waits for itself.
        read, write = os.pipe()
        os.dup2(read, 0)
        os.set_inheritable(write, True)
        signal.alarm(60)
        os.execv("/bin/sh", ["sh", "-c", "read line", "$marker"])
    os._exit(0)
os.wait()
time.sleep(0.2)
"""

_MEMORY = """
import mmap
for way in (lambda: bytes(10 << 30), lambda: mmap.mmap(-1, 10 << 30)):
    try:
        way()
        print("GOT")
    except (MemoryError, OSError) as e:
        print(repr(e))
"""

_SMALL_PIECES = """
pieces = []
try:
    for _ in range(3000):
        pieces.append(bytearray(1 << 20))
    print("GOT")
except MemoryError as e:
    pieces.clear()
    print(repr(e))
"""

_SHORT_FLOOD = """
import os
os.write(1, bytes(1 << 16))
os.write(1, bytes(1))
os._exit(0)
"""

_BIG_FILE = """
import os
try:
    with open("grown", "wb", 0) as file:
        for _ in range(128):
            file.write(bytes(1 << 18))
    print("GOT")
except OSError as e:
    print(repr(e))
for way in (lambda f: os.truncate(f, 10 << 30), lambda f: os.pwrite(f, b"x", (10 << 30) - 1)):
    file = os.open("big", os.O_RDWR | os.O_CREAT)
    try:
        way(file)
    except OSError as e:
        print(repr(e))
    if os.stat("big").st_size >= 10 << 30:
        print("GOT")
"""

_FULL_DISK = """
import os
for number in range(1024):
    file = os.open(str(number), os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 1 << 20)
    os.close(file)
print("GOT")
"""

_EMPTY_FILES = """
import os
for number in range(5_000):
    os.close(os.open(str(number), os.O_WRONLY | os.O_CREAT))
print("GOT")
"""

_DESCRIPTORS = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for _ in range(3000):
    os.dup(1)
print("GOT")
"""

_DEAF = """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(1)
"""

_STOPS_ITSELF = """
import ctypes, os, signal
try:
    os.kill(os.getpid(), signal.SIGSTOP)
except OSError as e:
    print(repr(e), flush=True)
if ctypes.CDLL(None)["raise"](int(signal.SIGSTOP)):
    raise OSError("refused")
"""


def _floods(e: Evidence) -> Outcome:
    return verdict(e.result.status is not SandboxStatus.KILLED or len(e.result.stdout) > 1 << 16)


ATTACKS = (
    Attack("infinite loop", "while True: pass", ends_as(SandboxStatus.TIMEOUT), 0.5),
    Attack("sleeper that ignores signals", _DEAF, ends_as(SandboxStatus.TIMEOUT), 0.5),
    Attack("SIGSTOP to itself", _STOPS_ITSELF, ends_as(SandboxStatus.TIMEOUT, SandboxStatus.ERROR), 1.0),
    Attack("fork bomb", _FORKS, multiplies, alone=True),
    Attack("fork bomb of session leaders", _SESSIONS, multiplies, alone=True),
    Attack("thread bomb", _THREADS, claims, alone=True),
    Attack("sleeping grandchild in a session of its own", _GRANDCHILD, survives, alone=True),
    Attack("10 GiB of memory", _MEMORY, claims),
    Attack("3 GiB in pieces of 1 MiB", _SMALL_PIECES, claims, timeout_seconds=60.0),
    Attack("too much output and an end at once", _SHORT_FLOOD, _floods),
    Attack("10 GiB of output", "import os\nfor _ in range($blocks): os.write(1, bytes(1 << 16))", _floods),
    Attack("file of 10 GiB", _BIG_FILE, claims),
    Attack("1 GiB in files of 1 MiB", _FULL_DISK, claims),
    Attack("5,000 empty files", _EMPTY_FILES, claims, timeout_seconds=60.0),
    Attack("3,000 open files", _DESCRIPTORS, claims),
)
