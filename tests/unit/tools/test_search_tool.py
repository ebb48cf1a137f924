import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kept_answers import KeptAnswers
from ramify.chat.arguments import read_call
from ramify.core.errors import ServiceDownError
from ramify.core.messages import Message, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import Hit, Json
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.configs import SearchConfig
from ramify.tools.passage_index import LocalSearch, PassageIndex
from ramify.tools.search import SearchTool, cache_key, clean, normalise

ROWS = [
    {"id": "p1", "text": "Laru  area\n56 .", "collection": "e1"},
    {"id": "p2", "text": "Laru age 31 .", "collection": "e1"},
    {"id": "p3", "text": "Laru area 12 .", "collection": "e2"},
    {"id": "p4", "text": "Laru area\t56 .", "collection": "e1"},
]


@pytest.fixture
def local(tmp_path: Path) -> LocalSearch:
    path = tmp_path / "passages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return LocalSearch(PassageIndex.build(path))


def ask(tool: SearchTool, arguments: Mapping[str, Any], **info: object) -> ToolResult:
    async def run() -> ToolResult:
        problem = Problem("q", (Message.of("user", "?"),), ("a",), info)
        session = await tool.open(problem)
        result = await session.call(ToolCall("c1", "search", arguments))
        forked = await session.fork()
        await session.close()
        await session.close()
        assert await forked.call(ToolCall("c1", "search", arguments)) == result
        return result

    return asyncio.run(run())


def test_lines_are_distinct_collapsed_passages(local: LocalSearch) -> None:
    result = ask(
        SearchTool(local, config=SearchConfig(top_k=4, snippet_chars=100, page_labels=False)),
        {"query": "laru area"},
    )
    assert result.status is ToolStatus.OK
    assert result.call_id == "c1"
    assert result.text.splitlines() == ["Laru area 56 .", "Laru area 12 .", "Laru age 31 ."]
    assert result.info == {"passages": ["p1", "p3", "p2"]}


def test_a_search_does_not_wait_for_work_in_asyncios_own_threads(local: LocalSearch) -> None:
    """Rewards are computed there, some of them for seconds."""

    async def main() -> Sequence[Hit]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        over = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(over.wait, 60.0))
        try:
            async with asyncio.timeout(20.0):
                return await local.search("laru age", 1, None)
        finally:
            over.set()
            await work

    assert [hit.id for hit in asyncio.run(main())] == ["p2"]


def test_page_labels_count_from_one(local: LocalSearch) -> None:
    result = ask(SearchTool(local, config=SearchConfig(top_k=4, snippet_chars=100)), {"query": "laru age"})
    assert result.text.splitlines()[0] == "Page 1: Laru age 31 ."
    assert result.text.splitlines()[1].startswith("Page 2: Laru area")


def test_a_passage_is_found_by_its_title_and_shown_with_it(tmp_path: Path) -> None:
    path = tmp_path / "titled.jsonl"
    path.write_text('{"title": "Rome", "text": "The capital."}\n')
    tool = SearchTool(LocalSearch(PassageIndex.build(path)))
    assert ask(tool, {"query": "rome"}).text == "Page 1: Rome: The capital."


def test_blanks_are_a_malformed_call_and_a_query_of_marks_finds_nothing(local: LocalSearch) -> None:
    tool = SearchTool(local)
    outcomes = []
    for content in ("", '""'):
        call = read_call(tool.spec, content)
        session = asyncio.run(tool.open(Problem("q", (Message.of("user", "?"),), ("a",))))
        result = asyncio.run(session.call(call))
        outcomes.append((result.status, result.text))
    assert outcomes == [
        (ToolStatus.MALFORMED, "search: it is empty"),
        (ToolStatus.EMPTY, "No search results found."),
    ]


def test_snippets_are_cut_and_top_k_holds(local: LocalSearch) -> None:
    result = ask(SearchTool(local, config=SearchConfig(top_k=1, snippet_chars=6)), {"query": "laru age"})
    assert result.text == "Page 1: Laru a"


def test_a_problem_sees_its_collection_only(local: LocalSearch) -> None:
    tool = SearchTool(local, config=SearchConfig(top_k=4, snippet_chars=100, page_labels=False))
    assert ask(tool, {"query": "laru area"}, collection="e2").info == {"passages": ["p3"]}
    assert ask(tool, {"query": "laru area"}, collection="none").status is ToolStatus.EMPTY
    assert ask(tool, {"query": "laru area"}, collection=None).status is ToolStatus.OK


@pytest.mark.parametrize("query", ["", "zebra", "(((", "\ud800", "\x00"])
def test_no_hit_is_an_empty_result(local: LocalSearch, query: str) -> None:
    result = ask(SearchTool(local, config=SearchConfig(top_k=4, snippet_chars=100)), {"query": query})
    assert (result.status, result.text) == (ToolStatus.EMPTY, "No search results found.")


@pytest.mark.parametrize("arguments", [{}, {"query": None}, {"query": ["laru"]}])
def test_a_call_without_a_query_is_malformed(local: LocalSearch, arguments: dict[str, Any]) -> None:
    assert (
        ask(SearchTool(local, config=SearchConfig(top_k=4, snippet_chars=100)), arguments).status
        is ToolStatus.MALFORMED
    )


def test_a_call_that_was_malformed_before_is_not_looked_up(local: LocalSearch) -> None:
    session = asyncio.run(SearchTool(local).open(Problem("q", (Message.of("user", "?"),), ("a",))))
    result = asyncio.run(session.call(ToolCall("c1", "search", {"query": "laru"}, "it is cut")))
    assert (result.status, result.text) == (ToolStatus.MALFORMED, "search: it is cut")


def test_spec_names_the_argument_and_the_deadline(local: LocalSearch) -> None:
    spec = SearchTool(local, config=SearchConfig(top_k=4, snippet_chars=100, timeout_seconds=2.5)).spec
    assert (spec.name, spec.forks, spec.timeout_seconds) == ("search", True, 2.5)
    assert spec.parameters["required"] == ["query"]
    assert spec.hedge_seconds is None
    assert SearchTool(local, config=SearchConfig(hedge_seconds=1.5)).spec.hedge_seconds == 1.5


class ScriptedProvider:
    """A provider that gives what the test says, and remembers what it was asked."""

    name = "scripted"

    def __init__(self, outcome: Sequence[Hit] | Exception) -> None:
        self.identity: Mapping[str, Json] = {"market": "en-US"}
        self.outcome = outcome
        self.queries: list[str] = []

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        self.queries.append(query)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "status", "text"),
    [
        (FailureKind.TIMEOUT, ToolStatus.TIMEOUT, "The search took too long."),
        (FailureKind.CONNECTION, ToolStatus.ERROR, "The search failed: the service cannot be reached."),
        (FailureKind.TOO_MANY, ToolStatus.ERROR, "The search failed: the service is busy."),
        (FailureKind.SERVER, ToolStatus.ERROR, "The search failed: the service failed."),
        (FailureKind.CLIENT, ToolStatus.ERROR, "The search failed: the service refused the query."),
        (FailureKind.MALFORMED, ToolStatus.ERROR, "The search failed: the service's answer cannot be read."),
        (FailureKind.TOO_LARGE, ToolStatus.ERROR, "The search failed: the service's answer cannot be read."),
    ],
)
def test_a_failed_request_is_a_typed_result(kind: FailureKind, status: ToolStatus, text: str) -> None:
    result = ask(
        SearchTool(ScriptedProvider(RequestFailedError(kind, "http://secret.example: 500"))), {"query": "x"}
    )
    assert (result.status, result.text) == (status, text)
    assert result.info == {"failure": kind.value}


def test_a_service_that_is_down_ends_the_run() -> None:
    with pytest.raises(ServiceDownError):
        ask(SearchTool(ScriptedProvider(ServiceDownError("down"))), {"query": "x"})


@pytest.mark.parametrize("query", ["", "  ", '"', '" "', "\x00\n\ud800"])
def test_nothing_is_asked_for_an_empty_query(query: str) -> None:
    provider, cache = ScriptedProvider([Hit("1", "text")]), KeptAnswers()
    result = ask(SearchTool(provider, cache), {"query": query})
    assert (result.status, result.text) == (ToolStatus.EMPTY, "No search results found.")
    assert provider.queries == []
    assert cache.answers == {}


def test_the_provider_gets_the_clean_query_and_the_cache_the_normalised_one() -> None:
    provider, cache = ScriptedProvider([Hit("1", "A  b", "T", "http://x")]), KeptAnswers()
    tool = SearchTool(provider, cache, SearchConfig(top_k=3))
    first = ask(tool, {"query": ' "C++"  Vs\tJava '})
    assert provider.queries == ["C++ Vs Java"]
    assert ask(tool, {"query": "c++ vs JAVA"}) == first
    assert len(provider.queries) == 1
    (name,) = cache.answers
    key = {"collection": None, "market": "en-US", "top_k": 3}
    assert json.loads(name) == ["search", "scripted", key, "c++ vs java"]
    assert cache.answers[name] == [{"id": "1", "text": "A  b", "title": "T", "url": "http://x"}]
    assert first.text == "Page 1: A b"


def test_collection_and_top_k_are_part_of_the_key() -> None:
    provider, cache = ScriptedProvider([Hit("1", "a")]), KeptAnswers()
    for tool in (
        SearchTool(provider, cache, SearchConfig(top_k=3)),
        SearchTool(provider, cache, SearchConfig(top_k=4)),
    ):
        for collection in ("one", "two", None):
            ask(tool, {"query": "q"}, collection=collection)
    assert len(provider.queries) == len(cache.answers) == 6


def test_a_remembered_text_is_shown_as_it_is() -> None:
    provider, cache = ScriptedProvider([]), KeptAnswers()
    tool = SearchTool(provider, cache, SearchConfig(top_k=1, snippet_chars=3))
    key = cache_key(provider, 1, None, "Old  Query")
    cache.answers[json.dumps([key.tool, key.provider, key.parameters, key.request], sort_keys=True)] = (
        "Page 1: one \nPage 2: two"
    )
    result = ask(tool, {"query": "old query"})
    assert (result.status, result.text) == (ToolStatus.OK, "Page 1: one \nPage 2: two")
    assert result.info == {"passages": []}
    assert provider.queries == []


@pytest.mark.parametrize(
    ("remembered", "status"),
    [
        ("No search results found.", ToolStatus.EMPTY),
        ([{"id": "1", "text": "a"}], ToolStatus.OK),
        ([{"a": 1}], ToolStatus.ERROR),
        ([{"id": "1", "text": 5}], ToolStatus.ERROR),
        ([{"id": ["1"], "text": "a"}], ToolStatus.ERROR),
        ([{"id": "1", "text": "a", "url": None}], ToolStatus.ERROR),
        ([{"id": "1", "text": "a", "more": "b"}], ToolStatus.ERROR),
        ([{"id": "1", "text": "a"}, "b"], ToolStatus.ERROR),
        ({"id": "1", "text": "a"}, ToolStatus.ERROR),
        (5, ToolStatus.ERROR),
        (None, ToolStatus.ERROR),
    ],
)
def test_a_remembered_notice_of_nothing_is_empty_and_nonsense_an_error(
    remembered: Json, status: ToolStatus
) -> None:
    cache = KeptAnswers()

    async def fetch(*_: object) -> Json:
        return remembered

    cache.fetch = fetch
    assert ask(SearchTool(ScriptedProvider([]), cache), {"query": "q"}).status is status


def test_hits_without_text_are_left_out() -> None:
    hits = [Hit("1", " "), Hit("2", "two"), Hit("3", "two"), Hit("4", "four")]
    result = ask(SearchTool(ScriptedProvider(hits)), {"query": "q"})
    assert result.text == "Page 1: two\nPage 2: four"
    assert result.info == {"passages": ["2", "4"]}


def test_a_provider_that_gives_more_than_asked_is_cut() -> None:
    hits = [Hit(str(i), f"text {i}") for i in range(9)]
    assert (
        ask(SearchTool(ScriptedProvider(hits), config=SearchConfig(top_k=2)), {"query": "q"}).text
        == "Page 1: text 0\nPage 2: text 1"
    )


@pytest.mark.parametrize(
    ("query", "other"),
    [
        ("C++", "c++"),
        ("a  b", "A B"),
        ('"a b"', "a b"),
        ("ﬁne", "fine"),
        ("Straße", "STRASSE"),
        ("a\nb", "a b"),
        ("\uff02x\uff02", "x"),
    ],
)
def test_queries_that_mean_the_same(query: str, other: str) -> None:
    assert normalise(query) == normalise(other)


@pytest.mark.parametrize(
    ("query", "other"), [("C++", "C#"), ("C", "C++"), ("a-b", "ab"), ("1.5", "15"), ("résumé", "resume")]
)
def test_queries_that_do_not(query: str, other: str) -> None:
    assert normalise(query) != normalise(other)


def test_cleaning_keeps_case_and_words() -> None:
    assert clean(' "Who"\x00is\t"C++" ') == "Who is C++"
    assert clean('5"disk') == "5 disk"
