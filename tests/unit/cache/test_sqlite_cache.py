import asyncio
import sqlite3
from functools import partial

import pytest
from cache_uses import Clock, asks, execute, key, never, run

from ramify.cache.database import read_groups
from ramify.cache.keys import digest, row_number_of
from ramify.cache.sqlite import SqliteCache, SqliteSettings
from ramify.core.errors import DataError
from ramify.core.protocols import CacheKey
from ramify.engines.virtual_clock import run_virtual
from ramify.runtime.call_clock import in_own_time, slot_of


@pytest.mark.parametrize("in_memory", [True, False])
def test_answers_live_for_their_time_and_empty_ones_for_less(path, in_memory):
    clock = Clock()
    settings = SqliteSettings(100.0, 10.0, memory_chars=10**6 if in_memory else 0)

    async def use(cache):
        await cache.fetch(key("full"), asks(["a"]))
        await cache.fetch(key("empty"), asks([]))
        await cache.flush()
        clock.now += 9.9
        assert await cache.fetch(key("full"), never) == ["a"]
        assert await cache.fetch(key("empty"), never) == []
        clock.now += 0.2
        assert await cache.fetch(key("full"), never) == ["a"]
        assert await cache.fetch(key("empty"), asks(["found now"])) == ["found now"]
        clock.now += 90.0
        assert await cache.fetch(key("empty"), never) == ["found now"]
        assert await cache.fetch(key("full"), asks(["b"])) == ["b"]

    run(use, path, settings, clock=clock)
    (group,) = read_groups(path)
    assert (group.answers, group.empty) == (2, 0)


def test_without_limits_nothing_grows_old(path):
    clock = Clock()

    async def use(cache):
        await cache.fetch(key("empty"), asks(""))
        clock.now += 1e9
        assert await cache.fetch(key("empty"), never) == ""

    run(use, path, SqliteSettings(None, None), clock=clock)


def test_memory_is_bounded_and_what_it_forgets_is_on_disk(path):
    async def use(cache):
        for i in range(50):
            await cache.fetch(key(f"q{i}"), asks("x" * 100))
        await cache.flush()
        for i in reversed(range(50)):
            await cache.fetch(key(f"q{i}"), never)

    cache = run(use, path, SqliteSettings(memory_chars=1050))
    assert (cache.counts.memory, cache.counts.disk, cache.counts.misses) == (10, 40, 50)


def test_an_answer_that_is_not_written_yet_is_found(path):
    async def use(cache):
        for i in range(100):
            await cache.fetch(key(f"q{i}"), asks(i))
            assert await cache.fetch(key(f"q{i}"), never) == i

    run(use, path, SqliteSettings(memory_chars=0))


def test_the_readable_columns_are_readable(path):
    async def use(cache):
        await cache.fetch(CacheKey("search", "p", {"b": 1, "a": "é"}, "日本 \ud800"), asks(["ü"]))

    run(use, path)
    (row,) = execute(path, "SELECT tool, provider, parameters, request, answer FROM answers")
    assert row == ("search", "p", '{"a":"é","b":1}', "日本 \\ud800", '["ü"]')


def test_two_caches_on_one_file_see_what_the_other_wrote(path):
    async def use(first):
        second = SqliteCache(path)
        await first.fetch(key("a"), asks("from first"))
        await first.flush()
        assert await second.fetch(key("a"), never) == "from first"
        assert second.counts.disk == 1
        await second.close()

    run(use, path)


def test_identical_requests_of_two_caches_ask_once(path):
    count = 0

    async def make():
        nonlocal count
        count += 1
        await asyncio.sleep(0.05)
        return "answer"

    async def use(first):
        second = SqliteCache(path)
        answers = await asyncio.gather(*(cache.fetch(key(), make) for cache in (first, second) * 10))
        assert answers == ["answer"] * 20
        await second.close()

    run(use, path)
    assert count == 1


def test_when_the_one_who_asks_fails_the_other_cache_asks(path):
    async def fails():
        await asyncio.sleep(0.05)
        raise ValueError("no")

    async def use(first):
        second = SqliteCache(path)
        results = await asyncio.gather(
            first.fetch(key(), fails), second.fetch(key(), asks("answer")), return_exceptions=True
        )
        assert [repr(result) for result in results] == ["ValueError('no')", "'answer'"]
        await second.close()

    run(use, path)


def test_a_cancelled_call_gives_its_claim_back(path):
    async def forever():
        await asyncio.Event().wait()

    async def use(first):
        hanging = SqliteCache(path)
        task = asyncio.ensure_future(hanging.fetch(key(), forever))
        await asyncio.sleep(0.02)
        await hanging.close()
        assert task.done()
        assert await first.fetch(key(), asks("answer")) == "answer"

    run(use, path)


def test_waiting_for_another_has_an_end(path):
    async def forever():
        await asyncio.Event().wait()

    async def use(hanging):
        task = asyncio.ensure_future(hanging.fetch(key(), forever))
        await asyncio.sleep(0.02)
        second = SqliteCache(path, SqliteSettings(wait_seconds=0.05))
        assert await second.fetch(key(), asks("answer")) == "answer"
        assert second.counts.waited == 1
        await second.close()
        task.cancel()

    run(use, path)


def test_a_paid_answer_is_remembered_though_nobody_waits_any_more(path):
    arrived = asyncio.Event()

    async def make():
        await asyncio.sleep(0.02)
        arrived.set()
        return "paid"

    async def use(cache):
        task = asyncio.ensure_future(cache.fetch(key(), make))
        await asyncio.sleep(0)
        task.cancel()
        await arrived.wait()
        assert await cache.fetch(key(), never) == "paid"

    run(use, path)


def test_a_claim_is_given_back_when_what_was_written_meanwhile_cannot_be_read(path):
    go_on = asyncio.Event()

    async def fails():
        await go_on.wait()
        raise ValueError("no")

    async def use(first):
        second, third = SqliteCache(path), SqliteCache(path)
        asking = asyncio.ensure_future(first.fetch(key(), fails))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(second.fetch(key(), never))
        while not second.counts.waited:
            await asyncio.sleep(0.001)
        other = sqlite3.connect(path, isolation_level=None)
        name = digest(key())
        row = (row_number_of(name), name, "search", "p", "{}", "q", "{", 0, 1.0)
        other.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        go_on.set()
        results = await asyncio.gather(asking, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ValueError, DataError]
        other.execute("DELETE FROM answers")
        other.close()
        assert await third.fetch(key(), asks("answer")) == "answer"
        assert third.counts.waited == 0
        await second.close()
        await third.close()

    run(use, path)


def test_an_answer_is_empty_as_it_will_be_read(path):
    clock = Clock()

    async def use(cache):
        await cache.fetch(key(), asks(()))
        clock.now += 11.0
        assert await cache.fetch(key(), asks(["found now"])) == ["found now"]

    run(use, path, SqliteSettings(100.0, 10.0), clock=clock)


def test_a_loop_that_closed_with_a_call_under_way_does_not_hold_its_key(path):
    async def forever():
        await asyncio.Event().wait()

    cache = SqliteCache(path)
    loop = asyncio.new_event_loop()
    left = loop.create_task(cache.fetch(key("again"), forever))
    other = loop.create_task(cache.fetch(key("never again"), forever))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()

    async def later():
        assert await cache.fetch(key("again"), asks("answer")) == "answer"
        await cache.close()

    asyncio.run(later())
    assert not left.done()
    assert not other.done()


def test_the_time_of_a_request_in_a_queue_counts_for_nobody_who_waits_for_it(path):
    async def use():
        cache, places = SqliteCache(path), asyncio.Semaphore(0)

        async def make():
            async with slot_of(places):
                await asyncio.sleep(5)
            return "found"

        asyncio.get_running_loop().call_later(50, places.release)
        try:
            calls = (in_own_time(10, partial(cache.fetch, key(), make)) for _ in range(3))
            return await asyncio.gather(*calls), cache.counts.misses
        finally:
            await cache.close()

    assert run_virtual(use())[0] == (["found"] * 3, 1)
