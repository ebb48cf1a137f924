"""A call's clock counts neither queues nor what held the event loop up."""

import asyncio

import pytest

from ramify.engines.virtual_clock import run_virtual
from ramify.runtime.call_clock import CallClock, current_clock, in_own_time, queued, set_clock, slot_of


class Times:
    """A clock that is set by hand, and the seconds that a loop was held up."""

    def __init__(self):
        self.now = self.held_up = 0.0

    def clock(self):
        return CallClock(lambda: self.now, lambda: self.held_up)

    def pass_by(self, seconds, held_up=0.0):
        self.now += seconds
        self.held_up += held_up


def test_own_time_queues_and_held_up_time_are_told_apart():
    times = Times()
    times.pass_by(3.0, held_up=2.0)
    clock = times.clock()
    times.pass_by(1.0)
    clock.enter_queue()
    times.pass_by(5.0, held_up=4.0)
    clock.enter_queue()
    times.pass_by(2.0)
    clock.leave_queue()
    times.pass_by(1.0)
    clock.leave_queue()
    times.pass_by(7.0, held_up=6.5)
    assert (clock.own, clock.queued, clock.held_up) == (1.5, 8.0, 6.5)


def test_a_loop_that_was_held_up_before_the_last_look_takes_no_more_than_passed():
    times = Times()
    clock = times.clock()
    times.pass_by(1.0, held_up=3.0)
    assert (clock.own, clock.held_up) == (0.0, 1.0)


async def _limited(work, seconds):
    """Return True if `work` ends within its own `seconds`, and the time of the decision."""
    loop = asyncio.get_running_loop()
    clock = CallClock(loop.time)

    async def measured():
        set_clock(clock)
        await work()

    task = asyncio.create_task(measured())
    try:
        return await clock.wait((task,), seconds), loop.time()
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("waits", "works", "in_time", "ends"),
    [(0, 9, True, 9), (0, 11, False, 10), (50, 9, True, 59), (50, 11, False, 60)],
)
def test_waiting_for_a_place_does_not_count(waits, works, in_time, ends):
    async def main():
        places = asyncio.Semaphore(1)

        async def hold():
            async with places:
                await asyncio.sleep(waits)

        async def work():
            async with slot_of(places):
                await asyncio.sleep(works)

        holder = asyncio.create_task(hold())
        await asyncio.sleep(0)
        outcome = await _limited(work, 10)
        await holder
        return outcome

    (outcome, ended), _ = run_virtual(main())
    assert (outcome, ended) == (in_time, pytest.approx(ends))


def test_a_place_is_given_back_by_a_call_that_is_cancelled_in_the_queue_or_in_its_place():
    async def main():
        places = asyncio.Semaphore(1)

        async def work():
            async with slot_of(places):
                await asyncio.sleep(100)

        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await asyncio.sleep(1)
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(1), slot_of(places):
            return True

    assert run_virtual(main())[0]


def test_without_a_call_nothing_is_measured():
    async def main():
        with queued():
            await asyncio.sleep(5)
        return current_clock().own

    assert run_virtual(main())[0] == 0.0


@pytest.mark.parametrize(
    ("waits", "works", "in_time", "ends"),
    [(0, 9, True, 9), (0, 11, False, 10), (50, 9, True, 59), (50, 11, False, 60)],
)
def test_a_part_of_a_call_has_its_limit_in_the_calls_own_time(waits, works, in_time, ends):
    async def main():
        loop, places = asyncio.get_running_loop(), asyncio.Semaphore(0)

        async def work():
            async with slot_of(places):
                await asyncio.sleep(works)
            return True

        loop.call_later(waits, places.release)
        try:
            outcome = await in_own_time(10, work)
        except TimeoutError:
            outcome = False
        ended = loop.time()
        async with asyncio.timeout(1):
            await places.acquire()
        return outcome, ended

    (outcome, ended), _ = run_virtual(main())
    assert (outcome, ended) == (in_time, pytest.approx(ends))


def test_a_clock_follows_another_from_the_middle_of_its_queue_to_the_middle_of_the_next():
    times = Times()
    shared, clock = times.clock(), times.clock()
    shared.enter_queue()
    times.pass_by(1.0)
    with shared.followed_by(clock):
        times.pass_by(2.0)
        shared.leave_queue()
        times.pass_by(4.0)
        shared.enter_queue()
        times.pass_by(8.0)
    times.pass_by(16.0)
    shared.leave_queue()
    assert (clock.own, clock.queued) == (1.0 + 4.0 + 16.0, 2.0 + 8.0)
