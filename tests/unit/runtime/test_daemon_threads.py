"""Threads for blocking functions: bounded, let go of when they are late, and no reason for a process to stay."""

import asyncio
import subprocess
import sys
import threading

import pytest

from ramify.core.errors import MachineError
from ramify.runtime import daemon_threads
from ramify.runtime.daemon_threads import DaemonThreads


def test_late_threads_leave_their_room_to_others():
    gate, begun = threading.Event(), threading.Semaphore(0)
    threads = DaemonThreads("tool wait", 1)

    def hang():
        begun.release()
        gate.wait()

    async def main():
        late = [asyncio.ensure_future(threads.result(threads.submit(hang))) for _ in range(3)]
        await asyncio.to_thread(begun.acquire)
        # One runs, two wait for it: only the first has a thread to be let go of.
        late[2].cancel()
        late[0].cancel()
        await asyncio.to_thread(begun.acquire)
        late[1].cancel()
        await asyncio.wait(late)
        return await threads.result(threads.submit(lambda: threading.current_thread().name))

    assert asyncio.run(main()) == "tool wait"
    gate.set()
    assert threads.late == 2


def test_an_iterator_that_is_used_up_does_not_keep_the_waiter():
    threads = DaemonThreads("environment x", 1)

    async def main():
        await asyncio.wait_for(threads.result(threads.submit(lambda: next(iter(())))), 20)

    with pytest.raises(RuntimeError, match="it raised StopIteration"):
        asyncio.run(main())


def test_too_many_late_threads_end_the_run(monkeypatch):
    monkeypatch.setattr(daemon_threads, "MOST_LATE", 2)
    gate, begun = threading.Event(), threading.Semaphore(0)
    threads = DaemonThreads("tool x", 8)

    def hang():
        begun.release()
        gate.wait()

    async def main():
        for _ in range(2):
            job = threads.submit(hang)
            await asyncio.to_thread(begun.acquire)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(threads.result(job), 0.01)
        with pytest.raises(MachineError, match="tool x: 2 calls still run long after their deadline"):
            threads.submit(gate.wait)
        gate.set()
        while threads._running_late:
            await asyncio.sleep(0.001)
        return await threads.result(threads.submit(lambda: 7))

    assert asyncio.run(main()) == 7


def test_a_thread_that_hangs_does_not_keep_the_process_alive():
    code = """
import asyncio, threading
from ramify.runtime.daemon_threads import DaemonThreads

begun = threading.Event()

def hang():
    begun.set()
    threading.Event().wait()

async def main():
    threads = DaemonThreads("hang", 1)
    job = threads.submit(hang)
    begun.wait()
    try:
        await asyncio.wait_for(threads.result(job), 0.05)
    except TimeoutError:
        print("late", threads.late)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "late 1\n", "")
