import asyncio
import sqlite3
import threading

import pytest
from cache_uses import asks, execute, key, never, run

from loopback import Reply, serve
from ramify.cache.database import read_groups
from ramify.cache.sqlite import CacheMode, SqliteCache, SqliteSettings
from ramify.core.errors import DataError, MachineError, ServiceDownError
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError

CACHE, RECORD, REPLAY, REPLAY_OR_FAIL = CacheMode
FAILURE = RequestFailedError(FailureKind.SERVER, "HTTP 500", 500)


def play(path, mode, use, settings=None):
    run(use, path, settings, mode=mode)


def entries(path):
    """Requests and outcomes in the file, by request; also while a run writes it."""
    return execute(path, "SELECT request, answer, is_empty FROM answers ORDER BY request")


@pytest.fixture
def recorded(path):
    async def use(cassette):
        assert await cassette.fetch(key("b"), asks(["second"])) == ["second"]
        assert await cassette.fetch(key("a"), asks([])) == []
        with pytest.raises(RequestFailedError):
            await cassette.fetch(key("c"), asks(FAILURE))

    play(path, RECORD, use)
    return path


def test_a_recording_has_answers_empty_ones_and_failures(recorded):
    failure = '{"kind":"server","detail":"HTTP 500","status":500}'
    assert entries(recorded) == [("a", "[]", 1), ("b", '["second"]', 0), ("c", failure, 2)]
    (group,) = read_groups(recorded)
    assert (group.answers, group.empty, group.failures) == (2, 1, 1)


@pytest.mark.parametrize("memory_chars", [0, 10**6])
@pytest.mark.parametrize("mode", [REPLAY, REPLAY_OR_FAIL])
def test_a_replay_asks_nothing_and_changes_nothing(recorded, mode, memory_chars):
    async def use(cassette):
        assert await cassette.fetch(key("a"), never) == []
        assert await cassette.fetch(key("b"), never) == ["second"]
        for _ in range(2):
            with pytest.raises(RequestFailedError) as caught:
                await cassette.fetch(key("c"), never)
            assert (caught.value.kind, caught.value.status) == (FailureKind.SERVER, 500)

    before = recorded.read_bytes()
    for _ in range(2):
        play(recorded, mode, use, SqliteSettings(memory_chars=memory_chars))
        assert recorded.read_bytes() == before


@pytest.mark.parametrize("memory_chars", [0, 10**6])
def test_recording_asks_again_once_what_an_earlier_run_recorded(recorded, memory_chars):
    async def use(cassette):
        assert await cassette.fetch(key("c"), asks(["new"])) == ["new"]
        assert await cassette.fetch(key("c"), never) == ["new"]
        for make in (asks(FAILURE), never):
            with pytest.raises(RequestFailedError):
                await cassette.fetch(key("b"), make)

    play(recorded, RECORD, use, SqliteSettings(memory_chars=memory_chars))
    assert [(request, outcome) for request, _, outcome in entries(recorded)] == [("a", 1), ("b", 2), ("c", 0)]


def test_nothing_in_a_cassette_grows_old(recorded):
    execute(recorded, "UPDATE answers SET made_at = 1.0")
    play(recorded, REPLAY, lambda cassette: cassette.fetch(key("a"), never), SqliteSettings(1.0, 1.0))


def test_a_replay_adds_what_is_not_there(recorded):
    play(recorded, REPLAY, lambda cassette: cassette.fetch(key("aa"), asks("new")))
    assert [request for request, *_ in entries(recorded)] == ["a", "aa", "b", "c"]


def test_where_nothing_may_be_asked_a_missing_request_is_named(recorded):
    async def use(cassette):
        with pytest.raises(ServiceDownError, match="no answer to search of p for 'missing one'"):
            await cassette.fetch(key("missing one"), never)
        with pytest.raises(MachineError, match="writes nothing"):
            cassette.remember(key("missing one"), "x")

    play(recorded, REPLAY_OR_FAIL, use)


def test_where_nothing_may_be_asked_the_file_must_be_there(path):
    with pytest.raises(DataError, match=r"does not exist\. Record one first"):
        SqliteCache(path, mode=REPLAY_OR_FAIL)
    assert not path.parent.exists()


@pytest.mark.parametrize("mode", [RECORD, REPLAY])
def test_an_outcome_is_in_the_file_before_it_is_returned(path, mode):
    async def use(cassette):
        for i, name in enumerate("za"):
            await cassette.fetch(key(name), asks(i))
            assert len(entries(path)) == i + 1
        with pytest.raises(RequestFailedError):
            await cassette.fetch(key("b"), asks(FAILURE))
        assert len(entries(path)) == 3

    play(path, mode, use)


def test_what_cannot_be_written_ends_a_recording(path):
    async def use(cassette):
        # The limit of pages stands for a full disk: SQLite says the same of both.
        cassette._writer._connection.execute("PRAGMA max_page_count = 8")
        for i in range(20):
            await cassette.fetch(key(f"q{i}"), asks("x" * 2000))

    with pytest.raises(MachineError, match=r"cassette .* cannot be written: .*full"):
        play(path, RECORD, use)
    assert 0 < len(entries(path)) < 20


def test_who_gives_up_while_an_answer_is_written_does_not_stop_the_writing(path):
    async def use(cassette):
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        asking = [asyncio.ensure_future(cassette.fetch(key(name), asks(name))) for name in "abc"]
        await asyncio.sleep(0.02)
        closing = asyncio.ensure_future(cassette.close())
        await asyncio.sleep(0.02)
        other.execute("COMMIT")
        other.close()
        await closing
        await asyncio.wait(asking)

    play(path, RECORD, use)
    assert [request for request, *_ in entries(path)] == ["a", "b", "c"]


def test_a_cassette_is_a_cache_and_a_cache_a_cassette(recorded):
    async def use(cache):
        assert await cache.fetch(key("b"), never) == ["second"]
        assert await cache.fetch(key("c"), asks("asked again")) == "asked again"
        with pytest.raises(RequestFailedError):
            await cache.fetch(key("d"), asks(FAILURE))
        await cache.flush()

    play(recorded, CACHE, use)
    assert [(request, outcome) for request, _, outcome in entries(recorded)] == [("a", 1), ("b", 0), ("c", 0)]
    play(recorded, REPLAY_OR_FAIL, lambda cassette: cassette.fetch(key("c"), never))


def test_a_failure_in_the_file_is_none_in_a_cache_and_stays(recorded):
    async def use(cache):
        for make in (asks(FAILURE), asks(FAILURE)):
            with pytest.raises(RequestFailedError):
                await cache.fetch(key("c"), make)

    play(recorded, CACHE, use)
    assert read_groups(recorded)[0].failures == 1


@pytest.mark.parametrize("mode", [CACHE, RECORD])
def test_only_a_file_with_failures_has_the_newer_schema(path, mode):
    async def use(cache):
        await cache.fetch(key("a"), asks(1))
        with pytest.raises(RequestFailedError):
            await cache.fetch(key("b"), asks(FAILURE))

    play(path, mode, use)
    assert execute(path, "PRAGMA user_version") == [(1 if mode is CACHE else 2,)]


@pytest.mark.parametrize(
    "failure", ["null", '{"kind":"unknown","detail":"","status":1}', '{"kind":"server"}', "[1]"]
)
def test_a_broken_failure_is_named(failure, recorded):
    execute(recorded, "UPDATE answers SET answer = ? WHERE request = 'c'", failure)
    with pytest.raises(DataError, match="failure of 'c' is broken"):
        play(recorded, REPLAY_OR_FAIL, lambda cassette: cassette.fetch(key("c"), never))


def test_one_run_records_at_a_time(recorded):
    async def use(_):
        for mode in (RECORD, REPLAY):
            with pytest.raises(MachineError, match="another run"):
                SqliteCache(recorded, mode=mode)
        for mode in (REPLAY_OR_FAIL, CACHE):
            reader = SqliteCache(recorded, mode=mode)
            assert await reader.fetch(key("b"), never) == ["second"]
            await reader.close()

    play(recorded, RECORD, use)
    play(recorded, REPLAY, lambda cassette: cassette.fetch(key("b"), never))


@pytest.mark.integration
def test_what_fails_because_its_client_is_closed_is_not_recorded(path):
    """A caller gives up, the provider's client is closed, and then the cassette, as a toolbox closes them."""
    stopped = threading.Event()

    async def whole(url, requests):
        client = HttpClient("probe", HttpSettings(attempts=1))
        cassette = SqliteCache(path, mode=RECORD)

        async def make():
            return (await client.get(url)).json()

        task = asyncio.ensure_future(cassette.fetch(key("hangs"), make))
        while not requests:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await client.close()
        for _ in range(20):
            await asyncio.sleep(0.005)
        await cassette.close()

    with serve(lambda _: Reply(write=lambda _: stopped.wait(30))) as server:
        try:
            asyncio.run(whole(server.url, server.requests))
        finally:
            stopped.set()
    assert entries(path) == []


def test_what_fails_while_the_cassette_closes_is_not_recorded(path):
    async def turns_into_a_failure():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RequestFailedError(FailureKind.TIMEOUT, "cancelled") from None

    async def use(cassette):
        waiting = asyncio.ensure_future(cassette.fetch(key(), turns_into_a_failure))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cassette.close()
        with pytest.raises(RequestFailedError):
            await waiting

    play(path, RECORD, use)
    assert entries(path) == []
