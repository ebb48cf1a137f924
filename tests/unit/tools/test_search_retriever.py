"""Queries to a retrieval service that come together travel together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from loopback import Asked, Loopback, Reply, as_json, serve
from ramify.core.protocols import Hit, SearchProvider
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import RequestFailedError
from ramify.tools.configs import RetrieverSearchConfig
from ramify.tools.search_http import RetrieverSearch

pytestmark = pytest.mark.integration


def batched(
    reply: Callable[[Asked], Reply], work: Callable[[SearchProvider], Awaitable[Any]]
) -> tuple[Any, Loopback]:
    """What `work` gives with a provider that sends up to eight queries together, and what its service was asked."""

    async def main(url: str) -> Any:
        client = HttpClient("retriever", HttpSettings(timeout_seconds=10.0, attempts=1))
        provider = RetrieverSearch(client, RetrieverSearchConfig(url=url, batch_size=8))
        try:
            return await work(provider)
        finally:
            await provider.close()

    with serve(reply) as server:
        return asyncio.run(main(server.url)), server


def echo(asked: Asked) -> Reply:
    return as_json([[{"id": query, "contents": f"about {query}"}] for query in asked.json()["query"]])


def test_queries_that_come_together_go_together() -> None:
    async def many(provider: SearchProvider) -> list[Sequence[Hit]]:
        return await asyncio.gather(*(provider.search(f"q{i}", 3, None) for i in range(20)))

    found, server = batched(echo, many)
    assert [hits[0].id for hits in found] == [f"q{i}" for i in range(20)]
    assert sorted(len(asked.json()["query"]) for asked in server.asked) == [4, 8, 8]


def test_queries_of_other_numbers_or_collections_do_not() -> None:
    async def many(provider: SearchProvider) -> None:
        await asyncio.gather(*(provider.search("q", n, c) for n in (3, 4) for c in (None, "x")))

    _, server = batched(echo, many)
    sent = {(asked.json()["top_n"], asked.json().get("collection")) for asked in server.asked}
    assert sent == {(3, None), (3, "x"), (4, None), (4, "x")}


def test_a_failed_batch_fails_for_all_in_it() -> None:
    async def many(provider: SearchProvider) -> list[Any]:
        asked = (provider.search(f"q{i}", 3, None) for i in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    found, _ = batched(lambda _: Reply(400), many)
    assert [type(error) for error in found] == [RequestFailedError] * 3


def test_who_gives_up_leaves_the_others_of_a_batch_alone() -> None:
    async def many(provider: SearchProvider) -> list[Any]:
        tasks = [asyncio.create_task(provider.search(f"q{i}", 3, None)) for i in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found, server = batched(echo, many)
    assert (found[0][0].id, found[2][0].id) == ("q0", "q2")
    assert isinstance(found[1], asyncio.CancelledError)
    assert [asked.json()["query"] for asked in server.asked] == [["q0", "q2"]]


def test_closing_lets_nobody_wait() -> None:
    async def close_early(provider: SearchProvider) -> Any:
        task = asyncio.create_task(provider.search("q", 3, None))
        await asyncio.sleep(0)
        await provider.close()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    found, _ = batched(echo, close_early)
    assert isinstance(found, asyncio.CancelledError)
