import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time

import pytest

from ramify.runtime.agent_loop import NOTICEABLE_SECONDS, StopOnSignal, agent_loop, seconds_held_up


def compute(seconds):
    """Keep this thread busy."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


def test_tasks_that_are_left_are_cancelled_and_the_loop_is_closed():
    ended = []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("wait")

    async def main():
        asyncio.get_running_loop().left = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), threading.current_thread()

    with agent_loop() as agent:
        loop, thread = agent.run(main())
    assert ended == ["wait"]
    assert loop.is_closed()
    assert not thread.is_alive()


def test_the_error_of_the_block_is_raised_and_the_loop_is_closed():
    async def main():
        return asyncio.get_running_loop()

    with pytest.raises(KeyError, match="mine"), agent_loop() as agent:  # noqa: PT012
        loop = agent.run(main())
        raise KeyError("mine")
    assert loop.is_closed()


def test_a_task_that_ignores_its_cancellation_does_not_keep_the_process_alive():
    code = """
import asyncio
import gc
from ramify.runtime.agent_loop import agent_loop

async def never_end():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def main():
    asyncio.get_running_loop().left = asyncio.ensure_future(never_end())
    await asyncio.sleep(0)

with agent_loop(0.05) as agent:
    agent.run(main())
print("left")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_a_loop_within_a_running_loop():
    """In a notebook somebody else's loop runs in the main thread."""

    async def main():
        with agent_loop() as agent:
            return agent.run(asyncio.sleep(0, "inner"))

    assert asyncio.run(main()) == "inner"


def test_a_callback_that_computes_is_noticed_and_no_idle_time_is():
    async def main():
        await asyncio.sleep(0.2)
        before = seconds_held_up()
        compute(1.0)
        await asyncio.sleep(0)
        return seconds_held_up() - before

    with agent_loop() as agent:
        assert agent.run(main()) >= 1.0
        held_up = agent.delays.take()
        assert held_up.longest >= 1.0
        assert held_up.is_noticeable
        agent.run(asyncio.sleep(0))
        assert agent.delays.take().longest < 1.0


def test_a_loop_that_keeps_no_count_was_never_held_up():
    async def main():
        compute(2 * NOTICEABLE_SECONDS)
        return seconds_held_up()

    assert asyncio.run(main()) == 0.0


@pytest.mark.integration
def test_what_was_built_before_is_not_walked_through_by_the_collector():
    with agent_loop() as agent:
        assert gc.get_freeze_count() == 0
        agent.freeze_objects()
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


def test_signals_are_left_alone_off_the_main_thread():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    inside = []

    def work():
        with agent_loop() as agent, StopOnSignal(agent) as stop:
            inside.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))
            inside.append(stop.run(asyncio.sleep(0, "done")))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [*before, "done"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
