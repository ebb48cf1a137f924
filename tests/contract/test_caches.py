"""Laws of every `Cache`."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ramify.cache.sqlite import CacheMode, SqliteCache
from ramify.core.protocols import Cache, CacheKey, Json
from ramify.net.failures import FailureKind, RequestFailedError

MAKERS: dict[str, Callable[[Path], Cache]] = {
    "cache": lambda folder: SqliteCache(folder / "cache.sqlite"),
    "record": lambda folder: SqliteCache(folder / "tape.sqlite", mode=CacheMode.RECORD),
    "replay": lambda folder: SqliteCache(folder / "tape.sqlite", mode=CacheMode.REPLAY),
}


def key(request: str = "q", tool: str = "search", provider: str = "p", **parameters: Json) -> CacheKey:
    return CacheKey(tool, provider, parameters, request)


class Service:
    """Answers after a moment, and counts."""

    def __init__(self, answer: object) -> None:
        self.answer, self.count = answer, 0

    async def __call__(self) -> Any:
        self.count += 1
        await asyncio.sleep(0.01)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


Play: TypeAlias = Callable[[Callable[[Cache], Awaitable[None]]], None]


@pytest.fixture(params=MAKERS)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Runs a function with a cache, which is then closed twice; again with the same file if it is called again."""

    def run(use: Callable[[Cache], Awaitable[None]]) -> None:
        async def whole() -> None:
            cache = MAKERS[request.param](tmp_path)
            try:
                await use(cache)
            finally:
                await cache.close()
                await cache.close()

        asyncio.run(whole())

    return run


def test_identical_requests_at_one_time_ask_once(play: Play) -> None:
    async def use(cache: Cache) -> None:
        service = Service(["a"])
        answers = await asyncio.gather(*(cache.fetch(key(k=1), service) for _ in range(20)))
        assert answers == [["a"]] * 20
        assert service.count == 1

    play(use)


def test_a_failure_reaches_all_who_wait(play: Play) -> None:
    async def use(cache: Cache) -> None:
        service = Service(RequestFailedError(FailureKind.SERVER, "HTTP 500", 500))
        results = await asyncio.gather(
            *(cache.fetch(key(), service) for _ in range(5)), return_exceptions=True
        )
        assert [str(result) for result in results] == ["server: HTTP 500"] * 5
        assert service.count == 1

    play(use)


def test_any_other_error_is_forgotten(play: Play) -> None:
    async def use(cache: Cache) -> None:
        with pytest.raises(ZeroDivisionError):
            await cache.fetch(key(), Service(ZeroDivisionError()))
        assert await cache.fetch(key(), Service("fine")) == "fine"

    play(use)


def test_a_caller_that_gives_up_does_not_disturb_the_others(play: Play) -> None:
    async def use(cache: Cache) -> None:
        service = Service("answer")
        first = asyncio.ensure_future(cache.fetch(key(), service))
        second = asyncio.ensure_future(cache.fetch(key(), service))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "answer"
        assert service.count == 1

    play(use)


def test_different_requests_are_asked_apart(play: Play) -> None:
    keys = [
        key("q", k=1),
        key("q", k=True),
        key("q", k=1.5),
        key("q", k="1"),
        key("q", k=None),
        key("q", k=[1]),
        key("q"),
        key("q2"),
        key("q", tool="page"),
        key("q", provider="p2"),
        key('",q'),
    ]

    async def use(cache: Cache) -> None:
        answers = await asyncio.gather(*(cache.fetch(k, Service(i)) for i, k in enumerate(keys)))
        assert answers == list(range(len(keys)))

    play(use)


@pytest.mark.parametrize(
    "answer",
    [
        "text",
        "",
        None,
        [],
        {},
        0,
        False,
        1.5,
        ["ü", "日本", "\ud800", "\x00\u2028"],
        {"b": 1, "a": {"c": [None]}},
    ],
    ids=repr,
)
def test_an_answer_is_the_same_each_time(play: Play, answer: Json) -> None:
    request = key("ÜŠ \ud800 \x00 日本", at="x\ud800", b=[1, {"z": 1, "a": 2}])

    async def use(cache: Cache) -> None:
        service = Service(answer)
        for _ in range(3):
            assert repr(await cache.fetch(request, service)) == repr(answer)
        assert service.count == 1

    play(use)


@pytest.mark.parametrize("play", ["cache", "replay"], indirect=True)
def test_answers_outlive_the_cache(play: Play) -> None:
    async def write(cache: Cache) -> None:
        for i in range(50):
            await cache.fetch(key(f"q{i}", b=1, a=2), Service([i]))

    async def read(cache: Cache) -> None:
        for i in range(50):
            assert await cache.fetch(key(f"q{i}", a=2, b=1), Service("asked again")) == [i]

    play(write)
    play(read)


def test_what_is_no_json_is_refused(play: Play) -> None:
    async def use(cache: Cache) -> None:
        for wrong in (object(), float("nan"), {1, 2}):
            with pytest.raises((TypeError, ValueError)):
                await cache.fetch(key(), Service(wrong))
        assert await cache.fetch(key(), Service("fine")) == "fine"

    play(use)


def test_tuples_are_lists_from_the_first_time_on(play: Play) -> None:
    async def use(cache: Cache) -> None:
        assert await cache.fetch(key(), Service(("a", ("b",)))) == ["a", ["b"]]
        assert await cache.fetch(key(), Service("asked again")) == ["a", ["b"]]

    play(use)


def test_closing_ends_what_is_under_way(play: Play) -> None:
    async def use(cache: Cache) -> None:
        waiting = asyncio.ensure_future(cache.fetch(key(), asyncio.Event().wait))
        await asyncio.sleep(0.01)
        await cache.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    play(use)
