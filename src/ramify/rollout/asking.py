"""Calling code that is not ours: it may hang, raise anything, or ignore its cancellation."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ramify.core.call_clock import CallClock, set_clock
from ramify.core.errors import RamifyError
from ramify.rollout.event_loop import seconds_held_up

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call gave no value: its time was up (`raised` is None), or it raised."""

    raised: BaseException | None

    @property
    def reason(self) -> str:
        """In words, for the policy."""
        if self.raised is None:
            return "it did not answer in time"
        name = type(self.raised).__name__
        try:
            return f"{name}: {self.raised}"
        except Exception:  # noqa: BLE001 - its message is code that is not ours either
            return name


@dataclass(frozen=True, slots=True)
class Issued(Generic[Value]):
    """A call in progress. The task returns a value or a failure; only ramify's own errors are raised."""

    task: "asyncio.Task[Value | Failure]"
    clock: CallClock


def issue(ask: Callable[[], Awaitable[Value]]) -> Issued[Value]:
    """Start a call, and a clock that measures the call's own time."""
    clock = CallClock(asyncio.get_running_loop().time, seconds_held_up)
    return Issued(asyncio.ensure_future(_caught(ask, clock)), clock)


async def first_good(issued: "tuple[Issued[Value], ...]", seconds: float) -> Value | Failure:
    """The first value, or the last failure once all calls have failed; calls that still run are abandoned.

    Once the first call has taken `seconds` of its own time, the result is a failure without an exception.
    """
    clock = issued[0].clock
    pending = {one.task for one in issued}
    failure = Failure(None)
    try:
        while pending:
            if not await clock.wait(pending, seconds):
                return Failure(None)
            done = [one.task for one in issued if one.task in pending and one.task.done()]
            pending.difference_update(done)
            for answer in (task.result() for task in done):
                if not isinstance(answer, Failure):
                    return answer
                failure = answer
        return failure
    finally:
        for one in issued:
            abandon(one.task)


async def within(seconds: float, ask: Callable[[], Awaitable[Value]]) -> Value | Failure:
    """The value of a call that may take `seconds` of its own time, or why it gave none."""
    return await first_good((issue(ask),), seconds)


async def detached(who: str, asked: Coroutine[Any, Any, Value]) -> Value:
    """Return or raise what `asked` does; but when the caller is cancelled, do not wait for `asked` to end.

    Raises:
        RuntimeError: `asked` cancelled itself; passing that on would lose the trajectory silently.
    """
    task = asyncio.ensure_future(asked)
    try:
        await asyncio.wait((task,))
    finally:
        abandon(task)
    if task.cancelled():
        raise RuntimeError(f"{who} cancelled its own call")
    return task.result()


def abandon(task: "asyncio.Task[Any]") -> None:
    """Cancel a task without waiting for it, and ignore how it ends."""
    if task.cancel():
        task.add_done_callback(_forget)
    else:
        _forget(task)


def _forget(ended: "asyncio.Task[Any]") -> None:
    """Retrieve the task's result, or asyncio complains that nobody did."""
    ended.cancelled() or ended.exception()


async def _caught(ask: Callable[[], Awaitable[Value]], clock: CallClock) -> Value | Failure:
    set_clock(clock)
    try:
        return await ask()
    except (RamifyError, KeyboardInterrupt):
        raise
    # Also SystemExit, a library's panic, or a call that cancels itself: the policy reads it and the run goes on.
    except BaseException as error:  # noqa: BLE001
        return Failure(error)
