"""The event loop of a Python session: one thread for all agents, so that notebooks, threads and scripts work alike."""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ramify.core.errors import ConfigError, RunInterruptedError
from ramify.runtime.agent_loop import AgentLoop, StopOnSignal

Result = TypeVar("Result")


_lock = threading.Lock()
_loops: list[AgentLoop] = []
# A forked process has no thread of its parent's.
os.register_at_fork(after_in_child=_loops.clear)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the session's loop to its end; the calling thread may have a running loop of its own.

    Raises:
        KeyboardInterrupt: Ctrl-C in the main thread; the coroutine was cancelled, or has just ended.
        ConfigError: The caller is a coroutine of this loop (an async tool or reward), which would wait for itself.
    """
    with _lock:
        if not _loops:
            _loops.append(AgentLoop())
        loop = _loops[0]
    if loop.is_current:
        work.close()
        raise ConfigError(
            "an async function waits for its own event loop. Await the twin of the method: `await agent.chat_async(text)`"
        )
    stop = StopOnSignal(loop)
    try:
        with stop:
            result = stop.run(work)
            # A busy process may handle a signal only when the work has ended, and the caller's loop must not go on.
            stop.check()
    except RunInterruptedError as stopped:
        raise KeyboardInterrupt(str(stopped)) from None
    return result


@atexit.register
def _end_with_process() -> None:
    """Leave the tasks of agents that were not closed to the end of the process; what they started ends with it."""
    for loop in _loops:
        loop.end_with_process()


async def in_thread(function: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401 - those of the function
    """Run a blocking method in a thread: the `_async` twin of each is this."""
    return await asyncio.to_thread(function, *args, **keywords)
