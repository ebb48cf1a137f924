"""Laws of every search provider that asks a service, against servers that speak its documented wire format."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from loopback import HttpRequest, Loopback, Reply, as_json, serve
from ramify.core.errors import ServiceDownError
from ramify.core.protocols import Hit, SearchProvider
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import read_key
from ramify.tools.configs import (
    BrightDataSearchConfig,
    RetrieverSearchConfig,
    SearxngSearchConfig,
    SerperSearchConfig,
)
from ramify.tools.search_http import BrightDataSearch, RetrieverSearch, SearxngSearch, SerperSearch

pytestmark = pytest.mark.integration

SETTINGS = HttpSettings(timeout_seconds=10.0, attempts=2, backoff_seconds=0.001, max_backoff_seconds=0.002)
KEY = "sk-0123456789abcdef"
FOUND = [
    Hit("http://a.example/1", "First text", "One", "http://a.example/1"),
    Hit("b", "Second text", "Two", "b"),
]


def organic(text_key: str) -> Callable[[Sequence[Hit]], Any]:
    def answer(hits: Sequence[Hit]) -> Any:
        rows = [
            {"position": i, "title": h.title, "link": h.url, text_key: h.text} for i, h in enumerate(hits, 1)
        ]
        return {"searchParameters": {"q": "?"}, "general": {"language": "en"}, "organic": rows}

    return answer


def searxng_answer(hits: Sequence[Hit]) -> Any:
    rows = [{"url": h.url, "title": h.title, "content": h.text, "engine": "bing", "score": 1.0} for h in hits]
    return {"query": "?", "number_of_results": 0, "results": rows, "answers": [], "unresponsive_engines": []}


def documents(hits: Sequence[Hit]) -> list[dict[str, str]]:
    return [{"id": h.id, "contents": f"{h.text}"} for h in hits]


def retrieve_answer(hits: Sequence[Hit]) -> Any:
    return {"result": [[{"document": document, "score": 0.5} for document in documents(hits)]]}


@dataclass(frozen=True)
class Case:
    """A provider, what its service answers, and where it sends query and number."""

    make: Callable[[HttpClient, str], SearchProvider]
    answer: Callable[[Sequence[Hit]], Any]
    route: str
    sent: Callable[[HttpRequest], tuple[str, int | None]]
    is_web: bool = True
    missing: Sequence[Any] = ()
    """Answers that lack something that was promised."""


def bing_query(request: HttpRequest) -> tuple[str, int | None]:
    query = parse_qs(urlsplit(request.json()["url"]).query)
    return query["q"][0], int(query["count"][0]) if "count" in query else None


CASES = {
    "serper": Case(
        lambda client, url: SerperSearch(client, read_key("SERPER_API_KEY"), SerperSearchConfig(url=url)),
        organic("snippet"),
        "/search",
        lambda request: (request.json()["q"], request.json()["num"]),
        missing=({"message": "ok"}, {"organic": {}}, {"organic": ["text"]}, [], None, "text"),
    ),
    "brightdata": Case(
        lambda client, url: BrightDataSearch(
            client, read_key("BRIGHTDATA_API_KEY"), BrightDataSearchConfig(zone="z1", url=url)
        ),
        organic("description"),
        "/request",
        bing_query,
        missing=({"error": "x"}, {"organic": 3}, [[]], 7),
    ),
    "searxng": Case(
        lambda client, url: SearxngSearch(client, SearxngSearchConfig(url=url + "/")),
        searxng_answer,
        "/search",
        lambda request: (parse_qs(urlsplit(request.path).query)["q"][0], None),
        missing=({}, {"results": None}, {"results": [1]}, []),
    ),
    "flashrag": Case(
        lambda client, url: RetrieverSearch(client, RetrieverSearchConfig(url=url)),
        documents,
        "/search",
        lambda request: (request.json()["query"], request.json()["top_n"]),
        is_web=False,
        missing=({"detail": "x"}, [3], [{"id": "a"}], [{"contents": 5}], None),
    ),
    "flashrag_batch": Case(
        lambda client, url: RetrieverSearch(client, RetrieverSearchConfig(url=url, batch_size=8)),
        lambda hits: [documents(hits)],
        "/batch_search",
        lambda request: (request.json()["query"][0], request.json()["top_n"]),
        is_web=False,
        missing=([], [[], []], {"result": []}, [3], [[{"id": 1}]]),
    ),
    "search_r1": Case(
        lambda client, url: RetrieverSearch(client, RetrieverSearchConfig(url=url, style="search_r1")),
        retrieve_answer,
        "/retrieve",
        lambda request: (request.json()["queries"][0], request.json()["topk"]),
        is_web=False,
        missing=({}, {"result": []}, {"result": [3]}, {"result": [[{"document": {}}]]}, [[]]),
    ),
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setenv("BRIGHTDATA_API_KEY", KEY)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def use(case: Case, url: str, work: Callable[[SearchProvider], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        client = HttpClient("service", replace(SETTINGS, **settings), secrets=[KEY])
        provider = case.make(client, url)
        try:
            return await work(provider)
        finally:
            await provider.close()
            await provider.close()

    return asyncio.run(main())


def search(case: Case, reply: Reply, query: str = "who", top_k: int = 5, **settings: Any) -> Sequence[Hit]:
    with serve(lambda _: reply) as server:
        return use(case, server.url, lambda provider: provider.search(query, top_k, None), **settings)


def failure(case: Case, reply: Reply, **settings: Any) -> RequestFailedError:
    with pytest.raises(RequestFailedError) as caught:
        search(case, reply, **settings)
    assert KEY not in str(caught.value)
    return caught.value


def test_query_and_number_are_sent_and_hits_come_in_order(case: Case) -> None:
    with serve(lambda _: as_json(case.answer(FOUND))) as server:
        hits = use(case, server.url, lambda provider: provider.search("C++ & Ä?", 12, None))
    (request,) = server.requests
    assert urlsplit(request.path).path == case.route
    query, number = case.sent(request)
    assert query == "C++ & Ä?"
    assert number in (12, None)
    assert [hit.text for hit in hits] == ["First text", "Second text"]
    assert [hit.id for hit in hits] == [hit.id for hit in FOUND]
    if case.is_web:
        assert list(hits) == FOUND


def test_no_more_than_asked(case: Case) -> None:
    many = [Hit(str(i), f"text {i}", "", str(i)) for i in range(30)]
    assert [hit.id for hit in search(case, as_json(case.answer(many)), top_k=3)] == ["0", "1", "2"]


def test_nothing_found_is_no_failure(case: Case) -> None:
    assert list(search(case, as_json(case.answer([])))) == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run(case: Case, status: int) -> None:
    with pytest.raises(ServiceDownError, match=f"HTTP {status}") as caught:
        search(case, as_json({"message": f"no: {KEY}"}, status))
    assert KEY not in str(caught.value)


def test_answers_without_what_was_promised_are_malformed(case: Case) -> None:
    for value in case.missing:
        assert failure(case, as_json(value)).kind is FailureKind.MALFORMED, value


def test_a_service_that_keeps_failing_is_down(case: Case) -> None:
    async def often(provider: SearchProvider) -> list[str]:
        kinds = []
        for _ in range(3):
            try:
                await provider.search("q", 5, None)
            except (RequestFailedError, ServiceDownError) as error:
                kinds.append(type(error).__name__)
        return kinds

    with serve(lambda _: Reply(200, b"nonsense")) as server:
        kinds = use(case, server.url, often, failures_to_open=2, max_backoff_seconds=60.0)
    assert kinds == ["RequestFailedError", "RequestFailedError", "ServiceDownError"]
    assert len(server.requests) == 2


def test_html_in_web_snippets_becomes_text(case: Case) -> None:
    markup = 'A <b>bold</b>&nbsp;&amp; <a href="x">linked</a>  <br/>1 &lt; 2 &quot;q&quot; a < b'
    (hit,) = search(case, as_json(case.answer([Hit("u", markup, "The <em>title</em>", "u")])))
    if case.is_web:
        assert (hit.text, hit.title) == ('A bold & linked 1 < 2 "q" a < b', "The title")
    else:  # a passage of a corpus is shown as it is there
        assert hit.text == markup


def test_identity_tells_services_apart(case: Case) -> None:
    def identity(url: str) -> Any:
        async def read(provider: SearchProvider) -> Any:
            return dict(provider.identity)

        return use(case, url, read)

    assert identity("http://one.example") == identity("http://one.example") != identity("http://two.example")
    assert KEY not in str(identity("http://one.example"))


@pytest.mark.parametrize("name", ["serper", "brightdata", "searxng"])
def test_results_without_fields_are_read_as_far_as_they_go(name: str) -> None:
    case = CASES[name]
    text = {"serper": "snippet", "brightdata": "description", "searxng": "content"}[name]
    url = "url" if name == "searxng" else "link"
    rows = [{}, {"title": "only a title"}, {text: "text"}, {url: "http://x"}, {text: None, url: 3}, {text: 4}]
    answer = {**case.answer([]), ("results" if name == "searxng" else "organic"): rows}
    assert [(hit.text, hit.url) for hit in search(case, as_json(answer))] == [("text", ""), ("", "http://x")]
    nameless = {**answer, ("results" if name == "searxng" else "organic"): [{"title": "a"}, {"caption": "b"}]}
    assert failure(case, as_json(nameless)).kind is FailureKind.MALFORMED


def one_search(
    name: str, reply: Any, work: Callable[[SearchProvider], Awaitable[Any]]
) -> tuple[Any, Loopback]:
    with serve(reply if callable(reply) else lambda _: as_json(reply)) as server:
        return use(CASES[name], server.url, work), server


def test_keys_travel_in_headers_only() -> None:
    for name, header, value in (
        ("serper", "x-api-key", KEY),
        ("brightdata", "authorization", f"Bearer {KEY}"),
    ):
        _, server = one_search(name, CASES[name].answer([]), lambda p: p.search("q", 5, None))
        assert server.requests[0].headers[header] == value
        assert KEY not in server.requests[0].path
        assert KEY.encode() not in server.requests[0].body


def test_bright_data_asks_bing_in_the_language_of_the_query() -> None:
    for query, market in (("who", "en-US"), ("甄嬛传导演", "zh-CN")):
        _, server = one_search(
            "brightdata", CASES["brightdata"].answer([]), lambda p, q=query: p.search(q, 10, None)
        )
        body = server.requests[0].json()
        page = urlsplit(body["url"])
        assert (body["zone"], body["format"]) == ("z1", "raw")
        assert f"{page.scheme}://{page.netloc}{page.path}" == "https://www.bing.com/search"
        parameters = {name: values[0] for name, values in parse_qs(page.query).items()}
        assert parameters == {"q": query, "mkt": market, "setLang": market, "cc": "us", "brd_json": "1"}


def test_bright_data_asks_bing_in_the_country_and_language_of_the_recipe() -> None:
    with serve(lambda _: as_json({"organic": []})) as server:
        config = BrightDataSearchConfig(zone="z1", url=server.url, country="cn", language="en")
        provider, plain = (
            BrightDataSearch(HttpClient("brightdata", HttpSettings()), KEY, each)
            for each in (config, BrightDataSearchConfig(zone="z1", url=server.url))
        )
        asyncio.run(provider.search("who", 10, None))
        page = parse_qs(urlsplit(server.requests[0].json()["url"]).query)
    assert [page[name] for name in ("mkt", "setLang", "cc")] == [["en-US"], ["en"], ["cn"]]
    # Without the key of the recipe, caches from before there was one still hold.
    assert provider.identity["language"] == "en"
    assert "language" not in plain.identity


def test_a_page_without_results_may_lack_the_list() -> None:
    assert search(CASES["brightdata"], as_json({"general": {"results_cnt": 0}})) == []
    assert search(CASES["serper"], as_json({"searchParameters": {"q": "q"}, "credits": 1})) == []


def test_searxng_says_how_to_allow_json() -> None:
    with pytest.raises(ServiceDownError, match=r"json to search\.formats"):
        search(CASES["searxng"], Reply(403))


def test_searxng_whose_engines_are_silent_found_nothing_out() -> None:
    answer = {**searxng_answer([]), "unresponsive_engines": [["bing", "timeout"], ["google", "CAPTCHA"]]}
    assert failure(CASES["searxng"], as_json(answer)).kind is FailureKind.MALFORMED
    answer = {**searxng_answer(FOUND), "unresponsive_engines": [["google", "CAPTCHA"]]}
    assert len(search(CASES["searxng"], as_json(answer))) == 2


@pytest.mark.parametrize(
    "document", [{"id": 7, "contents": "x"}, {"id": "7", "text": "x"}, {"document": {"id": 7, "text": "x"}}]
)
def test_documents_may_be_spelt_in_several_ways(document: dict[str, Any]) -> None:
    assert list(search(CASES["flashrag"], as_json([document]))) == [Hit("7", "x")]
    assert list(search(CASES["search_r1"], as_json({"result": [[document]]}))) == [Hit("7", "x")]


def test_title_and_text_are_joined_as_in_a_passage_file() -> None:
    (hit,) = search(CASES["flashrag"], as_json([{"title": "Ada", "text": "Born in 1815."}]))
    assert (hit.text, hit.title, hit.id) == ("Ada: Born in 1815.", "Ada", "")


def test_a_collection_is_sent_along() -> None:
    _, server = one_search("flashrag", [], lambda p: p.search("q", 5, "edition 3"))
    assert server.requests[0].json()["collection"] == "edition 3"
    _, server = one_search("flashrag", [], lambda p: p.search("q", 5, None))
    assert "collection" not in server.requests[0].json()
