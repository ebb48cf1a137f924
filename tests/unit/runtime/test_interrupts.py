"""Signals that ask a run to stop."""

import asyncio
import os
import signal

import pytest

from ramify.core.errors import RunInterruptedError
from ramify.runtime.agent_loop import StopOnSignal, agent_loop


@pytest.mark.parametrize(
    ("number", "message"), [(signal.SIGINT, "stopped by Ctrl-C"), (signal.SIGTERM, "stopped by SIGTERM")]
)
def test_the_first_signal_is_heard_at_the_next_safe_point(number, message):
    with StopOnSignal() as stop:
        stop.check()
        signal.raise_signal(number)
        with pytest.raises(RunInterruptedError) as stopped:
            stop.check()
    assert (str(stopped.value), stopped.value.number) == (message, number)


def test_what_is_awaited_is_cancelled_at_once():
    ended = []

    async def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with agent_loop() as loop, StopOnSignal(loop) as stop:
        with pytest.raises(RunInterruptedError, match="stopped by SIGTERM"):
            stop.run(work())
        assert ended == [True]


def test_a_signal_that_comes_before_the_work_begins_is_not_lost():
    async def work():
        await asyncio.sleep(60)

    with agent_loop() as loop, StopOnSignal(loop) as stop:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(RunInterruptedError, match="stopped by SIGTERM"):
            stop.run(work())


@pytest.fixture
def ctrl_c():
    """Python's own handler; a shell starts what runs in its background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_behind_the_last_safe_point_is_heard_at_the_end():
    saved = []

    def late():
        with StopOnSignal() as stop:
            stop.check()
            signal.raise_signal(signal.SIGTERM)
            saved.append(True)

    with pytest.raises(RunInterruptedError, match="stopped by SIGTERM"):
        late()
    assert saved == [True]


@pytest.mark.usefixtures("ctrl_c")
def test_the_second_signal_does_what_it_does_without_a_run():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopOnSignal() as stop:
        assert signal.getsignal(signal.SIGTERM) != handlers[1]
        signal.raise_signal(signal.SIGTERM)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(RunInterruptedError, match="stopped by SIGTERM"):
            stop.check()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
