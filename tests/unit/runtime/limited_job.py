"""A job that does what it is told, in the process itself. `limited_forking_job` does the same in forks."""

import contextlib
import ctypes
import os
import resource
import time
from pathlib import Path

from ramify.runtime.limited_process import serve

WARM = []
COUNT = [0]
GET_DUMPABLE = 3


def spin():
    while True:
        pass


def write_everywhere(text):
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # one that can only be read
            os.write(int(path.name), text.encode())
    return "own"


def count():
    COUNT[0] += 1
    return COUNT[0]


def descriptors():
    paths = {}
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the folder's own
            paths[path.name] = str(path.readlink())
    return paths


ACTIONS = {
    "spin": spin,
    "sleep": time.sleep,
    "sleep_after": lambda path: [Path(path).touch(), time.sleep(60)],
    "allocate": lambda size: len(bytearray(size)),
    "repeat": lambda size: "x" * size,
    "divide": lambda: 1 / 0,
    "exit": os._exit,
    "kill": lambda number: os.kill(os.getpid(), number),
    "print": lambda text: print(text, flush=True),  # noqa: T201 - as some library might
    "write_everywhere": write_everywhere,
    "count": count,
    "warm": lambda: WARM,
    "pids": lambda: [os.getpid(), os.getppid()],
    "slow_pids": lambda: [time.sleep(0.05), os.getpid(), os.getppid()][1:],
    "environment": lambda: dict(os.environ),
    "folder": lambda: str(Path.cwd()),
    "descriptors": descriptors,
    "dumpable": lambda: ctypes.CDLL(None).prctl(GET_DUMPABLE, 0, 0, 0, 0),
    "file": lambda path: Path(path).write_text("x"),
    "limits": lambda: [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CORE, resource.RLIMIT_AS)],
}


def answer(request, body):
    name, *arguments = request
    return [arguments, len(body)] if name == "echo" else ACTIONS[name](*arguments)


def warm_up():
    WARM.append(os.getpid())


if __name__ == "__main__":
    serve(answer, forks=False, warm_up=warm_up)
