"""Child processes for work that may never end, or use up all memory.

A job is a module that calls `serve` when it is run as a program. `LimitedProcesses` starts it with the first request,
without this program's environment and descriptors, and again after it died. The job ends when this program ends, even
by kill -9; in the middle of a request, when that ends or reaches a limit.

The arguments of a job are the limits and a seccomp filter. A request is a line, with the number of bytes that follow it and JSON,
and those bytes; an answer is a line, the JSON of [ending, value].
"""

import base64
import contextlib
import ctypes
import functools
import gc
import json
import math
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, Any, TypeAlias

from ramify.core.errors import MachineError, RamifyError

_START_SECONDS = 300.0
"""Wall time for imports and warm-up, however busy the machine may be."""
_CHUNK = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_LIBC = ctypes.CDLL(None)

_Answer: TypeAlias = Callable[[Any, bytes], Any]


class Ending(IntEnum):
    """The end of a request."""

    ANSWERED = 0
    CPU_TIME = 1
    WALL_TIME = 2
    MEMORY = 3
    ANSWER_SIZE = 4
    DIED = 5
    """The request, or `LimitedProcesses.close`, ended the process."""
    KILLED = 6
    """Something else killed the process and then the next one: the system when memory ran out, say."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each request.

    Attributes:
        cpu_seconds: Processor time.
        memory_bytes: Address space of the process; macOS has no such limit.
        answer_bytes: Length of the answer in JSON.
        wall_seconds: Wall time; by default only a process that is lost takes so long, however busy the machine may be.
    """

    cpu_seconds: float
    memory_bytes: int
    answer_bytes: int
    wall_seconds: float = 900.0


class UnansweredError(RamifyError):
    """A request has no answer; the message says why, where "it" is the request.

    Attributes:
        ending: The reason.
    """

    def __init__(self, ending: Ending, limits: Limits, status: int) -> None:
        """`status` is the exit status of a process that died."""
        self.ending = ending
        reasons = {
            Ending.CPU_TIME: f"it takes more than {limits.cpu_seconds:g} s of processor time",
            Ending.WALL_TIME: f"it takes more than {limits.wall_seconds:g} s",
            Ending.MEMORY: f"it takes more than {limits.memory_bytes >> 20} MiB of memory",
            Ending.ANSWER_SIZE: f"the result is too long (more than {limits.answer_bytes >> 10} KiB)",
            Ending.DIED: f"it ended its process (status {status})",
            Ending.KILLED: "its process was killed twice; is there enough memory?",
        }
        super().__init__(reasons[ending])


class LimitedProcesses:
    """Processes of one job, each with one request at a time. They start on demand; threads wait for a free one.

    Args:
        module: The job, as for `python -m`.
        limits: Limits of each request.
        processes: Most processes.
        system_calls: A seccomp filter for the forks of a job that forks; empty for none.
    """

    def __init__(self, module: str, limits: Limits, *, processes: int = 1, system_calls: bytes = b"") -> None:
        """Start no process yet."""
        settings = [json.dumps(asdict(limits)), base64.b64encode(system_calls).decode()]
        self._command = [sys.executable, "-P", "-s", "-B", "-X", "utf8", "-m", module, *settings]
        self._limits, self._processes = limits, processes
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        # A queue as a semaphore costs a twentieth of threading's.
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(self._processes):
            self._slots.put(None)
        self._live: set[subprocess.Popen[bytes]] = set()
        self._idle: list[subprocess.Popen[bytes]] = []

    def ask(self, request: Any, body: bytes = b"") -> Any:  # noqa: ANN401 - any JSON value
        """Return the answer to a request, a JSON value and bytes. If something killed the process, another one gets the request.

        Raises:
            UnansweredError: The request went over a limit, or its process died.
            MachineError: The system starts no process.
        """
        if self._owner != os.getpid():  # this is a fork, and the processes belong to the program that forked
            self._reset()
        frame = b"%d %s\n%s" % (len(body), json.dumps(request).encode(), body)
        self._slots.get()
        try:
            ending, value, status = self._ask_once(frame)
            if ending is Ending.KILLED:
                ending, value, status = self._ask_once(frame)
        finally:
            self._slots.put(None)
        if ending is not Ending.ANSWERED:
            raise UnansweredError(ending, self._limits, status)
        return value

    def close(self) -> None:
        """End the processes and their requests; a later request starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            for process in self._live.difference(idle):
                _kill(process)  # the thread that waits for it does the rest
            self._live.clear()
        for process in idle:
            _end(process)

    def _ask_once(self, frame: bytes) -> tuple[Ending, Any, int]:
        """Return the ending, the value, and the exit status if the process had to be ended."""
        with self._lock:
            is_new = not self._idle
            process = self._start() if is_new else self._idle.pop()
            self._live.add(process)
        deadline = time.monotonic() + self._limits.wall_seconds + is_new * _START_SECONDS
        line: bytes | None = b""
        try:
            line = _exchange(process, frame, self._limits.answer_bytes + 16, deadline)
        finally:  # after Ctrl-C in mid-answer, too: the rest would be taken for the next answer
            is_complete = line is not None and line.endswith(b"\n")
            is_closed, status = self._return(process, is_complete)
        if line is None:
            return Ending.WALL_TIME, None, status
        if is_complete:
            try:
                number, value = json.loads(line.decode())
                return Ending(number), value, status
            except (ValueError, RecursionError):  # a hostile process may write anything
                return Ending.DIED, None, status
        if status == -signal.SIGPROF:
            return Ending.CPU_TIME, None, status
        if status == -signal.SIGALRM:  # its own: this side gives a new process time to start besides
            return Ending.WALL_TIME, None, status
        is_killed = status in (-signal.SIGKILL, -signal.SIGTERM) and not is_closed
        return Ending.KILLED if is_killed else Ending.DIED, None, status

    def _return(self, process: "subprocess.Popen[bytes]", is_usable: bool) -> tuple[bool, int]:
        """Make a process idle, or end it; return True if `close` killed it, and the exit status of an ended one."""
        with self._lock:
            is_closed = process not in self._live
            if is_usable and not is_closed:
                self._idle.append(process)
                return False, 0
            self._live.discard(process)
        return is_closed, _end(process)

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            process = subprocess.Popen(
                self._command,
                bufsize=_CHUNK,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # No keys and no settings; a fixed hash seed, so that equal requests have equal answers.
                env={
                    "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
                    "PYTHONHASHSEED": "0",
                },
                cwd="/",
                start_new_session=True,  # Ctrl-C does not reach it, and its forks can be killed with it
            )
        except OSError as error:
            raise MachineError(f"cannot start a process for {self._command[-3]}: {error.strerror}") from None
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process


def _exchange(process: "subprocess.Popen[bytes]", frame: bytes, most: int, deadline: float) -> bytes | None:
    """Return the line of the answer, cut off if the process died; None if there is none in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    unsent = memoryview(frame)
    while unsent:
        try:
            unsent = unsent[os.write(process.stdin.fileno(), unsent) :]
        except BlockingIOError:
            if not _wait(process.stdin, select.POLLOUT, deadline):
                return None
        except BrokenPipeError:
            return b""
    return process.stdout.readline(most) if _wait(process.stdout, select.POLLIN, deadline) else None


def _wait(pipe: IO[bytes], event: int, deadline: float) -> bool:
    poller = select.poll()  # unlike `select.select`, it takes descriptors above 1,023
    poller.register(pipe, event)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1e3))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: "subprocess.Popen[bytes]") -> int:
    """Kill a process and its forks, and return its exit status: its own if it was ending by itself."""
    _kill(process)
    process.communicate()
    return process.returncode


def serve(answer: _Answer, *, forks: bool, warm_up: Callable[[], object] = lambda: None) -> None:
    """Answer requests until the input ends; for programs that `LimitedProcesses` starts.

    Args:
        answer: Makes the answer, a JSON value, from a request. If it raises, the process or its fork ends.
        forks: Fork for every request, so that no request can leave anything behind for the next. A fork costs some milliseconds.
        warm_up: Called once, with the limit on memory.
    """
    limits, system_calls = Limits(**json.loads(sys.argv[1])), base64.b64decode(sys.argv[2])
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_DUMPABLE, 0)  # no other program of this user may trace this process and so forge answers
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_AS, limits.memory_bytes)
    requests = os.fdopen(os.dup(0), "rb")
    # The kernel closes it, so that the parent finds the exit status when it reads the end.
    answers = os.fdopen(os.dup(1), "wb", closefd=False)
    # What a library prints must not be taken for an answer.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    warm_up()
    gc.freeze()  # a collection would write to, and so copy, every page in every fork
    for line in requests:
        size, _, text = line.partition(b" ")
        body = requests.read(int(size))
        attempt = functools.partial(_answer_in_time, answer, text, body, limits)
        ending, value = _answer_in_fork(attempt, limits, system_calls) if forks else attempt()
        answers.write(b"[%d,%s]\n" % (ending, value))
        answers.flush()


def _answer_in_time(answer: _Answer, text: bytes, body: bytes, limits: Limits) -> tuple[Ending, bytes]:
    # The signal's default action ends the process, even in the middle of one long operation.
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
    try:
        value = json.dumps(answer(json.loads(text.decode()), body)).encode()
    except MemoryError:
        return Ending.MEMORY, b"0"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return (Ending.ANSWERED, value) if len(value) <= limits.answer_bytes else (Ending.ANSWER_SIZE, b"0")


def _answer_in_fork(
    attempt: Callable[[], tuple[Ending, bytes]], limits: Limits, system_calls: bytes
) -> tuple[Ending, bytes]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ending = Ending.DIED
        try:
            os.closerange(3, writing)  # above all the pipes to the parent program
            _confine(limits, system_calls)
            ending, value = attempt()
            with os.fdopen(writing, "wb", closefd=False) as pipe:
                pipe.write(value)
        finally:
            os._exit(ending)
    os.close(writing)
    signal.alarm(math.ceil(limits.wall_seconds) + 1)  # the parent may be gone and not kill this process
    with os.fdopen(reading, "rb") as pipe:
        value = pipe.read(limits.answer_bytes + 1)
    signal.alarm(0)
    os.kill(child, signal.SIGKILL)  # changes nothing if it is exiting, and so has its status
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if len(value) > limits.answer_bytes:
        return Ending.ANSWER_SIZE, b"0"
    if status == -signal.SIGPROF:
        return Ending.CPU_TIME, b"0"
    if status in (Ending.ANSWERED, Ending.MEMORY, Ending.ANSWER_SIZE) and b"\n" not in value:
        return Ending(status), value
    return Ending.DIED, b"0"


def _confine(limits: Limits, system_calls: bytes) -> None:
    """Bind a fork to the life of its parent, its processor time, and a seccomp filter if the kernel has seccomp."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Unlike the timer, it cannot be undone.
    _limit(resource.RLIMIT_CPU, math.ceil(limits.cpu_seconds) + 1)
    if system_calls:
        program = _Program(len(system_calls) // 8, system_calls)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _limit(kind: int, most: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # not every system has every limit
        resource.setrlimit(kind, (most, most))


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _prctl(option: int, argument: int, second: int = 0) -> None:
    if sys.platform == "linux":
        _LIBC.prctl(option, *map(ctypes.c_ulong, (argument, second, 0, 0)))
