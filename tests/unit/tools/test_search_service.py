"""The retrieval service over a real socket: formats of its routes, bad requests, our own client, stopping."""

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
import uvicorn

from ramify.core.protocols import Hit
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.configs import RetrieverSearchConfig
from ramify.tools.index_folder import open_index
from ramify.tools.passage_index import LocalSearch, PassageIndex
from ramify.tools.search_http import RetrieverSearch
from ramify.tools.search_service import MAX_BODY_BYTES, FairTurns, make_app

pytestmark = pytest.mark.integration

ROWS = [
    {"id": "p1", "contents": "Laru area 56 .", "collection": "e1"},
    {"id": "p2", "contents": "Laru age 31 .", "collection": "e2"},
    {"id": "p3", "contents": '"Laru"\nA place with\ttabs & <b>signs</b>, Ünïcode.', "collection": "e1"},
]
P1, P2 = ({"id": row["id"], "contents": row["contents"]} for row in ROWS[:2])


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    path = tmp_path_factory.mktemp("service") / "passages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return open_index(path, path.with_name("index"))


@pytest.fixture(scope="module")
def url(index: PassageIndex) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(make_app(index, 2), port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def post(url: str, route: str, body: Any) -> Any:
    return httpx.post(f"{url}/{route}", json=body).raise_for_status().json()


def test_search_speaks_flashrag(url: str) -> None:
    assert post(url, "search", {"query": "laru area", "top_n": 1}) == [P1]
    documents, scores = post(url, "search", {"query": "laru age", "top_n": 2, "return_score": True})
    assert documents == [P2, P1]
    assert scores[0] > scores[1] > 0
    assert post(url, "search", {"query": "zebra"}) == []


def test_batch_search_speaks_flashrag(url: str) -> None:
    queries = ["laru area", "zebra", "laru age"]
    assert post(url, "batch_search", {"query": queries, "top_n": 1}) == [[P1], [], [P2]]
    documents, scores = post(url, "batch_search", {"query": queries, "top_n": 1, "return_score": True})
    assert documents == [[P1], [], [P2]]
    assert [len(hits) for hits in scores] == [1, 0, 1]


def test_retrieve_speaks_search_r1(url: str) -> None:
    request = {"queries": ["laru area", "zebra"], "topk": 1}
    assert post(url, "retrieve", request) == {"result": [[P1], []]}
    scored = post(url, "retrieve", {**request, "return_scores": True})["result"]
    assert [[hit["document"] for hit in hits] for hits in scored] == [[P1], []]
    assert scored[0][0]["score"] > 0


def test_health_says_what_is_served(url: str, index: PassageIndex) -> None:
    health = httpx.get(f"{url}/health").raise_for_status().json()
    assert health == {
        "status": "healthy",
        "passages": 3,
        "corpus": index.fingerprint,
        "engine": "tantivy",
        "retrievers": {"total": 2, "available": 2},
    }


def test_a_collection_restricts(url: str) -> None:
    assert post(url, "search", {"query": "laru age", "top_n": 9, "collection": "e2"}) == [P2]
    assert post(url, "search", {"query": "laru age", "top_n": 9, "collection": "none"}) == []
    half = json.dumps({"query": "laru age \ud800", "top_n": 9, "collection": "\ud800"}).encode()
    answer = httpx.post(f"{url}/search", content=half)
    assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.parametrize(
    ("route", "body", "detail"),
    [
        ("search", {}, "expected 'query' to be text"),
        ("search", {"query": ["a"]}, "expected 'query' to be text"),
        ("search", {"query": "  "}, "expected text in 'query', got none"),
        ("search", {"query": "a", "top_n": 0}, "expected 'top_n' to be a whole number from 1 to 1000"),
        ("search", {"query": "a", "top_n": True}, "expected 'top_n' to be a whole number from 1 to 1000"),
        ("search", {"query": "a", "top_n": 10**9}, "expected 'top_n' to be a whole number from 1 to 1000"),
        ("search", {"query": "a", "return_score": 1}, "expected 'return_score' to be true or false"),
        ("search", {"query": "a", "collection": 4}, "expected 'collection' to be text"),
        ("search", [1], "expected a JSON object, found a list"),
        ("batch_search", {"query": "a"}, "expected 'query' to be a list of 1 to 1024 queries"),
        ("batch_search", {"query": []}, "expected 'query' to be a list of 1 to 1024 queries"),
        ("batch_search", {"query": ["a"] * 1025}, "expected 'query' to be a list of 1 to 1024 queries"),
        ("batch_search", {"query": ["a", 3]}, "expected 'query' to be text"),
        (
            "batch_search",
            {"query": ["a"] * 11, "top_n": 1000},
            "expected at most 10000 passages in an answer, got 11 queries of 1000 passages",
        ),
        ("retrieve", {"query": ["a"]}, "expected 'queries' to be a list of 1 to 1024 queries"),
        ("retrieve", {"queries": ["a"], "topk": "3"}, "expected 'topk' to be a whole number from 1 to 1000"),
    ],
)
def test_a_wrong_request_is_explained(url: str, route: str, body: Any, detail: str) -> None:
    answer = httpx.post(f"{url}/{route}", json=body)
    assert (answer.status_code, answer.json()) == (400, {"detail": detail})


@pytest.mark.parametrize(
    ("body", "message"), [(b"", "JSON"), (b"{", "JSON"), (b"\xff", "UTF-8"), (b"[" * 100_000, "nested")]
)
def test_what_is_no_json_is_refused(url: str, body: bytes, message: str) -> None:
    answer = httpx.post(f"{url}/search", content=body)
    assert answer.status_code == 400
    assert message in answer.json()["detail"]


def test_large_requests_are_refused_before_they_are_read_whole(url: str) -> None:
    answer = httpx.post(f"{url}/search", content=b" " * (MAX_BODY_BYTES + 1))
    assert (answer.status_code, answer.json()["detail"]) == (413, "expected at most 1000000 bytes")


def test_other_routes_and_methods_are_refused_as_json(url: str) -> None:
    assert httpx.post(f"{url}/nothing").status_code == 404
    answer = httpx.get(f"{url}/search")
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})


@pytest.mark.parametrize(
    ("style", "batch_size"), [("flashrag", 1), ("flashrag", 8), ("search_r1", 1), ("search_r1", 8)]
)
def test_our_client_finds_what_the_local_index_finds(
    url: str, index: PassageIndex, style: Any, batch_size: int
) -> None:
    queries = ["laru area", "age", "zebra", "signs ünïcode", "(((", "laru place tabs"]

    async def main() -> tuple[list[Sequence[Hit]], list[Sequence[Hit]]]:
        there = RetrieverSearch(
            HttpClient("retriever", HttpSettings()),
            RetrieverSearchConfig(url=url, style=style, batch_size=batch_size),
        )
        here = LocalSearch(index)
        searches = [(query, collection) for query in queries for collection in (None, "e1", "other")]
        hits = await asyncio.gather(*(there.search(query, 2, collection) for query, collection in searches))
        await there.close()
        return hits, [await here.search(query, 2, collection) for query, collection in searches]

    hits, expected = asyncio.run(main())
    assert hits == expected


def test_our_client_reports_a_wrong_request(url: str) -> None:
    async def main() -> None:
        there = RetrieverSearch(HttpClient("retriever", HttpSettings()), RetrieverSearchConfig(url=url))
        try:
            await there.search("q", 5000, None)
        finally:
            await there.close()

    with pytest.raises(RequestFailedError, match="whole number from 1 to 1000") as caught:
        asyncio.run(main())
    assert caught.value.kind is FailureKind.CLIENT


def test_many_at_once_are_all_answered(url: str) -> None:
    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=50), timeout=60.0) as client:
            requests = [{"query": f"laru {word}", "top_n": 1} for word in ("area", "age") * 100]
            return await asyncio.gather(*(client.post(f"{url}/search", json=body) for body in requests))

    answers = [answer.json() for answer in asyncio.run(main())]
    assert answers == [[P1], [P2]] * 100


class SlowIndex:
    """An index whose searches wait to be let go, one by one, and that notes what was asked."""

    fingerprint, engine = "f", "slow"

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.let_go = threading.Semaphore(0)

    def __len__(self) -> int:
        return 0

    def ranked(self, query: str, top_k: int, collection: str | None) -> tuple[()]:
        self.queries.append(query)
        self.let_go.acquire()
        return ()


async def over_the_app(app: Any, use: Any) -> None:
    """Use the service without a socket: `use` gets a function that sends a request and one that says the client has left."""

    def ask(body: Any, gone: asyncio.Event, client: str = "1.2.3.4") -> "asyncio.Task[int]":
        parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        status: list[int] = []

        async def receive() -> Any:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        scope = {
            "type": "http", "method": "POST", "path": "/batch_search", "headers": [], "query_string": b"",
            "client": (client, 1), "root_path": "", "scheme": "http", "server": ("a", 1),
        }  # fmt: skip

        async def whole() -> int:
            await app(scope, receive, send)
            return status[0]

        return asyncio.create_task(whole())

    await use(ask)


async def until(holds: Any) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


def test_one_query_waits_for_one_of_each_batch_and_not_for_all_of_them() -> None:
    index = SlowIndex()

    async def use(ask: Any) -> None:
        stays = asyncio.Event()
        batches = [ask({"query": [f"b{n}"] * 1000, "top_n": 1}, stays) for n in range(8)]
        await until(lambda: index.queries)
        single = ask({"query": ["single"], "top_n": 1}, stays)
        await asyncio.sleep(0)
        for _ in range(12):
            index.let_go.release()
        await until(single.done)
        assert index.queries.index("single") <= 9
        index.let_go.release(8 * 1000)
        assert await asyncio.gather(*batches) == [200] * 8

    asyncio.run(over_the_app(make_app(index, 1), use))  # type: ignore[arg-type]


def test_what_a_client_asked_for_ends_when_it_leaves() -> None:
    index = SlowIndex()

    complaints: list[dict[str, Any]] = []

    async def use(ask: Any) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        left, stays = asyncio.Event(), asyncio.Event()
        batch = ask({"query": ["gone"] * 1000, "top_n": 1}, left)
        await until(lambda: len(index.queries) == 2)
        left.set()
        assert await batch == 400
        single = ask({"query": ["single"], "top_n": 1}, stays)
        index.let_go.release(3)
        assert await single == 200
        assert index.queries == ["gone", "gone", "single"]
        gc.collect()
        assert complaints == []

    asyncio.run(over_the_app(make_app(index, 2), use))  # type: ignore[arg-type]


async def queue(
    turns: FairTurns, order: list[str], requests: list[tuple[str, str, str]]
) -> list[asyncio.Task[None]]:
    """Tasks that wait in this order for a place, each with its client and its request."""

    async def wait(client: str, request: str, name: str) -> None:
        async with turns.slot(client, request):
            order.append(name)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(wait(*each)) for each in requests]
    await asyncio.sleep(0)
    return tasks


def test_clients_take_turns_and_so_do_their_requests() -> None:
    order: list[str] = []

    async def main() -> None:
        turns = FairTurns(1)
        large = [("a", "a1", f"a1.{i}") for i in range(4)] + [("a", "a2", f"a2.{i}") for i in range(3)]
        await asyncio.gather(*await queue(turns, order, [*large, ("b", "b1", "b"), ("c", "c1", "c")]))

    asyncio.run(main())
    assert order == ["a1.0", "a1.1", "b", "c", "a2.0", "a1.2", "a2.1", "a1.3", "a2.2"]


def test_who_leaves_takes_no_turn_and_keeps_no_place() -> None:
    order: list[str] = []

    async def main() -> None:
        turns = FairTurns(1)
        async with turns.slot("first", 0):
            # One queue: of two clients the other would be next.
            tasks = await queue(
                turns, order, [*(("a", "a1", f"a.{i}") for i in range(100)), ("a", "a1", "b")]
            )
            for task in tasks[:99]:
                task.cancel()
        tasks[99].cancel()  # it just got the slot
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with asyncio.timeout(10), turns.slot("last", 0):
            order.append("last")

    asyncio.run(main())
    assert order == ["b", "last"]


def test_no_more_places_than_there_are() -> None:
    now = most = 0

    async def hold(turns: FairTurns, client: int) -> None:
        nonlocal now, most
        async with turns.slot(client % 3, client):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    async def main() -> None:
        turns = FairTurns(4)
        await asyncio.gather(*(hold(turns, client) for client in range(50)))

    asyncio.run(main())
    assert (now, most) == (0, 4)


def test_who_leaves_before_a_turn_gives_nothing_back() -> None:
    order: list[str] = []

    async def main() -> None:
        turns = FairTurns(1)
        async with turns.slot("first", 0):
            (leaving,) = await queue(turns, order, [("a", "a1", "a")])
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
            (waiting,) = await queue(turns, order, [("b", "b1", "b")])
            order.append("first")
        await waiting

    asyncio.run(main())
    assert order == ["first", "b"]
