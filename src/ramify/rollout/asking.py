"""Asking code that is not ours: it may hang, raise anything, or not agree to be cancelled."""

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
    """Why nothing came of asking: the time was up (`raised` is None), or it raised."""

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
    """Asking that is under way. The task ends in a value or a failure; ramify's own errors are raised."""

    task: "asyncio.Task[Value | Failure]"
    clock: CallClock


def issue(ask: Callable[[], Awaitable[Value]]) -> Issued[Value]:
    """Start asking, and a clock that measures what it takes itself."""
    clock = CallClock(asyncio.get_running_loop().time, seconds_held_up)
    return Issued(asyncio.ensure_future(_caught(ask, clock)), clock)


async def first_good(issued: "tuple[Issued[Value], ...]", seconds: float) -> Value | Failure:
    """The first value, or the last failure once all have failed; the others are abandoned.

    A failure without an exception once the first of them has taken `seconds` itself.
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
    """What asking gives within `seconds` of its own, or why it gives nothing."""
    return await first_good((issue(ask),), seconds)


async def detached(who: str, asked: Coroutine[Any, Any, Value]) -> Value:
    """What `asked` returns or raises, but a cancellation does not wait until `asked` agrees to it.

    Raises:
        RuntimeError: `asked` was cancelled although nobody here did so; the trajectory would be lost silently.
    """
    task = asyncio.ensure_future(asked)
    try:
        await asyncio.wait((task,))
    finally:
        abandon(task)
    if task.cancelled():
        raise RuntimeError(f"{who} cancelled what it was asked for")
    return task.result()


def abandon(task: "asyncio.Task[Any]") -> None:
    """Cancel without waiting, and without a word about how it ends."""
    if task.cancel():
        task.add_done_callback(_forget)
    else:
        _forget(task)


def _forget(ended: "asyncio.Task[Any]") -> None:
    """Look at how it ended, or asyncio complains that nobody did."""
    ended.cancelled() or ended.exception()


async def _caught(ask: Callable[[], Awaitable[Value]], clock: CallClock) -> Value | Failure:
    set_clock(clock)
    try:
        return await ask()
    except (RamifyError, KeyboardInterrupt):
        raise
    # Also SystemExit, a library's panic, or a cancellation of its own: the policy is told, the run goes on.
    except BaseException as error:  # noqa: BLE001
        return Failure(error)
