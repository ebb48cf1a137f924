"""Services that search: queries to a retriever that come together travel together; anyone wrote the markup of web results."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from loopback import HttpRequest, Loopback, Reply, as_json, serve
from ramify.core.protocols import Hit, SearchProvider
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.exchange import Answer
from ramify.net.failures import RequestFailedError
from ramify.runtime.call_clock import CallClock, on_clock
from ramify.tools.configs import RetrieverSearchConfig
from ramify.tools.search_http import ResultFields, RetrieverSearch, plain_text, read_hits

FIELDS = ResultFields("organic", "snippet", "link")


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("a <b>bold</b> word &amp; a&nbsp;sign", "a bold word & a sign"),
        ("one<br/>two<p class='x'>three</p>", "one two three"),
        ("x < y and y > z", "x < y and y > z"),
        ("before<!-- hidden -->after <script>alert(1)</script >end", "before after end"),
        ("shown <!-- not closed <b>hidden</b>", "shown"),
        ("shown <style> not closed", "shown"),
    ],
)
def test_snippets_are_plain_text(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    "piece", ["<!--", "<script>", "<style ", "<a b=c ", "<a a=", "<b ", "&lt", "< ", "</script "]
)
def test_markup_without_end_takes_no_time_of_its_own(piece: str) -> None:
    """In processor seconds, which other programs of the machine do not change; what is quadratic takes minutes."""
    started = time.thread_time()
    plain_text(piece * (2_000_000 // len(piece)))
    assert time.thread_time() - started < 20.0


def test_only_the_hits_that_are_shown_are_read() -> None:
    body = b'{"organic": [{"snippet": "a"}, {}, {"link": "b"}, {"snippet": "c"}]}'
    hits = read_hits(Answer(200, "http://a/", "", body), FIELDS, 2)
    assert [(hit.text, hit.url) for hit in hits] == [("a", ""), ("", "b")]


def batched(
    reply: Callable[[HttpRequest], Reply], work: Callable[[SearchProvider], Awaitable[Any]]
) -> tuple[Any, Loopback]:
    """Return the result of `work` with a provider that sends up to eight queries together, and its service."""

    async def main(url: str) -> Any:
        client = HttpClient("retriever", HttpSettings(timeout_seconds=10.0, attempts=1))
        provider = RetrieverSearch(client, RetrieverSearchConfig(url=url, batch_size=8))
        try:
            return await work(provider)
        finally:
            await provider.close()

    with serve(reply) as server:
        return asyncio.run(main(server.url)), server


def echo(request: HttpRequest) -> Reply:
    return as_json([[{"id": query, "contents": f"about {query}"}] for query in request.json()["query"]])


@pytest.mark.integration
def test_queries_that_come_together_go_together() -> None:
    async def many(provider: SearchProvider) -> list[Sequence[Hit]]:
        return await asyncio.gather(*(provider.search(f"q{i}", 3, None) for i in range(20)))

    results, server = batched(echo, many)
    assert [hits[0].id for hits in results] == [f"q{i}" for i in range(20)]
    assert sorted(len(request.json()["query"]) for request in server.requests) == [4, 8, 8]


@pytest.mark.integration
def test_queries_of_other_numbers_or_collections_do_not() -> None:
    async def many(provider: SearchProvider) -> None:
        await asyncio.gather(*(provider.search("q", n, c) for n in (3, 4) for c in (None, "x")))

    _, server = batched(echo, many)
    sent = {(request.json()["top_n"], request.json().get("collection")) for request in server.requests}
    assert sent == {(3, None), (3, "x"), (4, None), (4, "x")}


@pytest.mark.integration
def test_a_failed_batch_fails_for_all_in_it() -> None:
    async def many(provider: SearchProvider) -> list[Any]:
        searches = (provider.search(f"q{i}", 3, None) for i in range(3))
        return await asyncio.gather(*searches, return_exceptions=True)

    results, _ = batched(lambda _: Reply(400), many)
    assert [type(error) for error in results] == [RequestFailedError] * 3


@pytest.mark.integration
def test_who_gives_up_leaves_the_others_of_a_batch_alone() -> None:
    async def many(provider: SearchProvider) -> list[Any]:
        tasks = [asyncio.create_task(provider.search(f"q{i}", 3, None)) for i in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results, server = batched(echo, many)
    assert (results[0][0].id, results[2][0].id) == ("q0", "q2")
    assert isinstance(results[1], asyncio.CancelledError)
    assert [request.json()["query"] for request in server.requests] == [["q0", "q2"]]


@pytest.mark.integration
def test_closing_lets_nobody_wait() -> None:
    async def close_early(provider: SearchProvider) -> Any:
        task = asyncio.create_task(provider.search("q", 3, None))
        await asyncio.sleep(0)
        await provider.close()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    results, _ = batched(echo, close_early)
    assert isinstance(results, asyncio.CancelledError)


@pytest.mark.integration
def test_the_wait_of_a_batch_for_a_connection_is_time_in_a_queue_for_all_in_it() -> None:
    def slow(request: HttpRequest) -> Reply:
        time.sleep(0.1)
        return echo(request)

    async def main(url: str) -> list[float]:
        client = HttpClient("retriever", HttpSettings(in_flight=1))
        provider = RetrieverSearch(client, RetrieverSearchConfig(url=url, batch_size=2))
        clocks = [CallClock(asyncio.get_running_loop().time) for _ in range(4)]
        searches = (on_clock(clock, partial(provider.search, "q", 3, None)) for clock in clocks)
        try:
            await asyncio.gather(*map(asyncio.create_task, searches))
        finally:
            await provider.close()
        return [clock.queued for clock in clocks]

    with serve(slow) as server:
        first, second, *later = asyncio.run(main(server.url))
    assert max(first, second) < min(later)
