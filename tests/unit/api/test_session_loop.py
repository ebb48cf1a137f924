"""The loop that serves calls from Python."""

import asyncio
import os
import signal

import pytest

from ramify.api.session import run


def test_a_signal_as_the_work_ends_is_not_lost():
    async def ends_with_a_signal():
        # The callback runs when this has returned, and before the caller has the result.
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        return "done"

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(ends_with_a_signal())
    assert signal.getsignal(signal.SIGINT) is before
    assert run(asyncio.sleep(0, "goes on")) == "goes on"
