import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ramify.cache.contents import Contents
from ramify.cache.keys import digest, place
from ramify.cache.sqlite import SqliteCache, SqliteSettings
from ramify.core.errors import DataError, MachineError
from ramify.core.protocols import CacheKey


def key(request="q", **parameters):
    return CacheKey("search", "p", parameters, request)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def run(use: Callable[[SqliteCache], Awaitable[None]], path: Path, settings=None, **options) -> SqliteCache:
    async def whole():
        cache = SqliteCache(path, settings, **options)
        try:
            await use(cache)
        finally:
            await cache.close()
        return cache

    return asyncio.run(whole())


def asks(answer):
    async def make():
        return answer

    return make


async def never():
    raise AssertionError("asked")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "cache.sqlite"


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
    with Contents(path) as contents:
        (group,) = contents.groups()
    assert (group.answers, group.empty) == (2, 0)


def test_without_limits_nothing_grows_old(path):
    clock = Clock()

    async def use(cache):
        await cache.fetch(key("empty"), asks(""))
        clock.now += 1e9
        assert await cache.fetch(key("empty"), never) == ""

    run(use, path, SqliteSettings(None, None), clock=clock)


def test_failures_are_not_stored(path):
    async def fails():
        raise ValueError("no")

    async def use(cache):
        with pytest.raises(ValueError, match="no"):
            await cache.fetch(key(), fails)

    run(use, path)
    with Contents(path) as contents:
        assert contents.groups() == []


def test_memory_is_bounded_and_what_it_forgets_is_on_disk(path):
    async def use(cache):
        for i in range(50):
            await cache.fetch(key(f"q{i}"), asks("x" * 100))
        await cache.flush()
        for i in reversed(range(50)):
            await cache.fetch(key(f"q{i}"), never)

    cache = run(use, path, SqliteSettings(memory_chars=1050))
    assert (cache.counts.memory, cache.counts.disk, cache.counts.asked) == (10, 40, 50)


def test_an_answer_that_is_not_written_yet_is_found(path):
    async def use(cache):
        for i in range(100):
            await cache.fetch(key(f"q{i}"), asks(i))
            assert await cache.fetch(key(f"q{i}"), never) == i

    run(use, path, SqliteSettings(memory_chars=0))


def test_parameters_in_another_order_are_the_same(path):
    async def use(cache):
        await cache.fetch(key(a=1, b={"c": 1, "d": 2}), asks("x"))
        assert await cache.fetch(key(b={"d": 2, "c": 1}, a=1), never) == "x"

    run(use, path)


def test_the_readable_columns_are_readable(path):
    async def use(cache):
        await cache.fetch(CacheKey("search", "p", {"b": 1, "a": "é"}, "日本 \ud800"), asks(["ü"]))

    run(use, path)
    row = (
        sqlite3.connect(path)
        .execute("SELECT tool, provider, parameters, request, answer FROM answers")
        .fetchone()
    )
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
    asked = 0

    async def make():
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return "answer"

    async def use(first):
        second = SqliteCache(path)
        answers = await asyncio.gather(*(cache.fetch(key(), make) for cache in (first, second) * 10))
        assert answers == ["answer"] * 20
        await second.close()

    run(use, path)
    assert asked == 1


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


WRONG_FILES = {
    "text": b"query,answer\n" * 500,
    "short": b"hello",
    "json": b'{"query": "Page 1: x"}',
    "cut header": b"SQLite format 3\x00" + b"\x00" * 10,
    "damaged": b"SQLite format 3\x00\x10\x00\x02\x02\x00\x40\x20\x20" + b"\xff" * 8192,
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_that_is_no_cache_is_refused_and_left_alone(name, tmp_path):
    path = tmp_path / "cache.sqlite"
    path.write_bytes(WRONG_FILES[name])
    with pytest.raises(DataError, match=r"cache\.sqlite.*move it away"):
        SqliteCache(path)
    assert path.read_bytes() == WRONG_FILES[name]


def test_a_damaged_cache_is_refused_and_left_alone(path):
    async def fill(cache):
        for i in range(200):
            cache.remember(key(f"q{i}"), "x" * 500)

    run(fill, path)
    whole = path.read_bytes()
    broken = whole[:4096] + b"\xde\xad" * 2048 + whole[8192:]
    path.write_bytes(broken)
    with pytest.raises(DataError, match="is damaged"):
        SqliteCache(path)
    assert path.read_bytes() == broken


def test_damage_that_is_met_later_is_a_clear_stop(path):
    async def fill(cache):
        for i in range(500):
            cache.remember(key(f"q{i}"), "x" * 500)

    run(fill, path)
    whole = path.read_bytes()
    half = len(whole) // 8192 * 4096
    path.write_bytes(whole[:half] + b"\xde" * (len(whole) - half))

    async def read(cache):
        for i in range(500):
            await cache.fetch(key(f"q{i}"), asks("new"))

    with pytest.raises(DataError, match="is damaged"):
        run(read, path, say=lambda text: None)


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (a)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="another program"):
        SqliteCache(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(path):
    run(lambda cache: cache.fetch(key(), asks(1)), path)
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 7")
    newer.close()
    with pytest.raises(DataError, match="schema 7, this ramify reads 1"):
        SqliteCache(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be made"):
        SqliteCache(tmp_path / "file" / "cache.sqlite")
    with pytest.raises(MachineError, match="cannot be"):
        SqliteCache(tmp_path)


def test_a_full_disk_ends_the_remembering_and_not_the_run(path):
    said = []

    async def use(cache):
        # The limit of pages stands for a full disk: SQLite says the same of both.
        cache._writer._connection.execute("PRAGMA max_page_count = 20")
        for i in range(200):
            assert await cache.fetch(key(f"q{i}"), asks(f"{i}" + "x" * 2000)) == f"{i}" + "x" * 2000
            await cache.flush()
        assert await cache.fetch(key("q199"), never) == "199" + "x" * 2000

    cache = run(use, path, say=said.append)
    assert len(said) == 1
    assert "full" in said[0]
    with Contents(path) as contents:
        (group,) = contents.groups()
    assert group.answers + cache.forgotten == 200
    assert cache.forgotten > 100
    run(lambda cache: cache.fetch(key("q0"), never), path)


def test_a_spelling_that_sqlite_cannot_hold_is_escaped(path):
    async def use(cache):
        cache.remember(key("q"), ["a"])
        cache.remember_spelling("q \ud800", key("q"), "text \udfff")
        await cache.flush()
        cache.remember(key("after"), ["b"])

    assert run(use, path).forgotten == 0
    with Contents(path) as contents:
        assert list(contents.imported()) == [("q \\ud800", "text \\udfff", ["a"])]
        assert contents.groups()[0].answers == 2


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
        row = (place(name), name, "search", "p", "{}", "q", "{", 0, 1.0)
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


def test_claims_that_cannot_be_written_are_named(path):
    claims = path.with_name("cache.sqlite-claims")
    claims.mkdir(parents=True)
    with pytest.raises(MachineError, match=r"cache\.sqlite-claims beside it cannot be written"):
        SqliteCache(path)


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


BROKEN = ["{", "", "[" * 100_000, b"blob"]


def break_answer(path, answer):
    with sqlite3.connect(path) as other:
        other.execute("UPDATE answers SET answer = ?", (answer,))
    other.close()


@pytest.mark.parametrize("answer", BROKEN, ids=["cut", "empty", "deep", "blob"])
def test_an_answer_that_is_no_json_is_named_with_what_removes_it(path, answer):
    run(lambda cache: cache.fetch(key(), asks("first")), path)
    break_answer(path, answer)
    with pytest.raises(DataError, match=r"cache\.sqlite: the answer at place \d+ is no JSON") as caught:
        run(lambda cache: cache.fetch(key(), never), path)
    with Contents(path) as contents, pytest.raises(DataError, match="is no JSON"):
        list(contents.not_imported("search"))
    command, statement = str(caught.value).partition("sqlite3 ")[2].split('"')[:2]
    assert command.strip() == str(path)
    with sqlite3.connect(path) as other:
        other.execute(statement)
    other.close()
    run(lambda cache: cache.fetch(key(), asks("second")), path)
    run(lambda cache: cache.fetch(key(), never), path)
