"""Search providers that ask a service over HTTP, and turn its JSON results into hits with plain text.

`retriever` is a retrieval service with the routes of FlashRAG and Tool-Star, or of Search-R1; `brightdata` is Bing
through Bright Data, as in ARPO's search tool (arXiv 2507.19849); `serper` is Google through serper.dev; `searxng` is a
SearXNG instance of your own.
"""

import asyncio
import html
import itertools
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlencode

from ramify.core.errors import ServiceDownError
from ramify.core.protocols import Hit, Json
from ramify.net.client import HttpClient
from ramify.net.exchange import Answer
from ramify.net.failures import RequestFailedError
from ramify.runtime.call_clock import CallClock, current_clock, set_clock
from ramify.tools.configs import (
    BrightDataSearchConfig,
    RetrieverSearchConfig,
    SearxngSearchConfig,
    SerperSearchConfig,
)

_BATCH_SECONDS = 0.01
_Group: TypeAlias = tuple[int, str | None]
"""top_k and collection: the same for all queries of one request."""


@dataclass(frozen=True, slots=True)
class _PendingQuery:
    query: str
    hits: "asyncio.Future[list[Hit]]"


@dataclass(frozen=True, slots=True)
class _Batch:
    """Queries of one request, and its clock, which the calls follow: its time in a queue counts for none of them."""

    clock: CallClock
    queries: list[_PendingQuery] = field(default_factory=list)


class RetrieverSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes."""

    name = "retriever"

    def __init__(self, client: HttpClient, config: RetrieverSearchConfig) -> None:
        self._client, self._base, self._style = client, config.url.rstrip("/"), config.style
        self._batch_size = config.batch_size
        self._batches: dict[_Group, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.identity: Mapping[str, Json] = {"address": self._base, "style": config.style}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """Return at most `top_k` passages; `collection` is sent too, for services that support it (`ramify search-serve`)."""
        if self._batch_size == 1:
            return await self._search_one(query, top_k, collection)
        group = (top_k, collection)
        loop = asyncio.get_running_loop()
        batch = self._batches.setdefault(group, _Batch(CallClock(loop.time)))
        hits: asyncio.Future[list[Hit]] = loop.create_future()
        batch.queries.append(_PendingQuery(query, hits))
        if len(batch.queries) == 1:
            self._start(self._send_later(group, batch))
        if len(batch.queries) == self._batch_size:
            del self._batches[group]
            self._start(self._send(group, batch))
        with batch.clock.followed_by(current_clock()):
            return await hits

    async def close(self) -> None:
        """Cancel pending searches, and close all connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for batch in self._batches.values():
            for pending in batch.queries:
                pending.hits.cancel()
        self._batches.clear()
        await self._client.close()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_later(self, group: _Group, batch: _Batch) -> None:
        await asyncio.sleep(_BATCH_SECONDS)
        if self._batches.get(group) is batch:  # else it was full, and has been sent
            del self._batches[group]
            await self._send(group, batch)

    async def _send(self, group: _Group, batch: _Batch) -> None:
        """Send the queries of a batch whose callers still wait, and deliver the answers."""
        set_clock(batch.clock)
        waiting = [pending for pending in batch.queries if not pending.hits.done()]
        if not waiting:
            return
        try:
            results = await self._search_many([pending.query for pending in waiting], *group)
        except (RequestFailedError, ServiceDownError) as error:
            for pending in waiting:
                if not pending.hits.done():
                    pending.hits.set_exception(error)
            return
        except asyncio.CancelledError:
            for pending in waiting:
                pending.hits.cancel()
            raise
        for pending, hits in zip(waiting, results, strict=True):
            if not pending.hits.done():
                pending.hits.set_result(hits)

    async def _search_one(self, query: str, top_k: int, collection: str | None) -> list[Hit]:
        if self._style == "search_r1":
            (hits,) = await self._search_many([query], top_k, collection)
            return hits
        body: dict[str, Json] = {"query": query, "top_n": top_k, "return_score": False}
        answer = await self._post("search", body, collection)
        return _documents(answer, answer.json(), top_k)

    async def _search_many(
        self, queries: Sequence[str], top_k: int, collection: str | None
    ) -> list[list[Hit]]:
        if self._style == "search_r1":
            body: dict[str, Json] = {"queries": queries, "topk": top_k, "return_scores": True}
            answer = await self._post("retrieve", body, collection)
            record = answer.json()
            lists = record.get("result") if isinstance(record, Mapping) else None
        else:
            body = {"query": queries, "top_n": top_k, "return_score": False}
            answer = await self._post("batch_search", body, collection)
            lists = answer.json()
        if not isinstance(lists, list) or len(lists) != len(queries):
            raise answer.malformed(f"expected a list of results for each of {len(queries)} queries")
        return [_documents(answer, documents, top_k) for documents in lists]

    async def _post(self, route: str, body: dict[str, Json], collection: str | None) -> Answer:
        if collection is not None:
            body["collection"] = collection
        return await self._client.post_json(f"{self._base}/{route}", body)


def _documents(answer: Answer, documents: Json, top_k: int) -> list[Hit]:
    if not isinstance(documents, list):
        raise answer.malformed("expected a list of documents")
    return [_document(answer, document) for document in documents[:top_k]]


def _document(answer: Answer, document: Json) -> Hit:
    """Return the hit in a document, {"contents" or "text", "id"?, "title"?}, or in {"document": such a document, ...}."""
    if isinstance(document, Mapping) and isinstance(document.get("document"), Mapping):
        document = document["document"]
    if not isinstance(document, Mapping):
        raise answer.malformed("expected documents that are objects")
    title = document.get("title") if isinstance(document.get("title"), str) else ""
    identifier = document.get("id")
    shown = str(identifier) if isinstance(identifier, str | int) else ""
    contents = document.get("contents")
    if isinstance(contents, str):
        return Hit(shown, contents, str(title))
    text = document.get("text")
    if not isinstance(text, str):
        raise answer.malformed("expected 'contents' or 'text' in each document")
    return Hit(shown, f"{title}: {text}" if title else text, str(title))


_ATTRIBUTES = r"""(?:\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*"""
_INLINE = re.compile(
    rf"</?(?:a|abbr|b|bdi|cite|code|em|font|i|mark|q|s|small|span|strong|sub|sup|u|wbr){_ATTRIBUTES}\s*/?>",
    re.I,
)
_BLOCK = re.compile(
    rf"</?(?:br|dd|div|dl|dt|h[1-6]|hr|img|li|ol|p|pre|section|table|tbody|td|th|tr|ul){_ATTRIBUTES}\s*/?>",
    re.I,
)
# An element that is not closed extends to the end, as in browsers. Searching for each missing end would take quadratic time.
_UNSHOWN = re.compile(r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.I | re.S)
_MOST_CHARS = 50_000
"""Most characters of a snippet's markup that are read; no search engine sends that many."""


@dataclass(frozen=True, slots=True)
class ResultFields:
    """The names of fields in a service's answer.

    Attributes:
        results: The list of results.
        text: The snippet of a result.
        url: The address of a result.
        besides: An answer with one of these fields may omit the list if nothing was found.
    """

    results: str
    text: str
    url: str
    besides: Sequence[str] = ()


def plain_text(markup: str) -> str:
    """Return a snippet without HTML: tags are removed, entities become characters, blanks collapse; "a < b" stays."""
    shown = _BLOCK.sub(" ", _INLINE.sub("", _UNSHOWN.sub(" ", markup[:_MOST_CHARS])))
    return " ".join(html.unescape(shown).split())


def read_hits(answer: Answer, fields: ResultFields, top_k: int) -> list[Hit]:
    """Return the first `top_k` results that have a snippet or an address.

    Raises:
        RequestFailedError: MALFORMED: the answer does not have the documented structure.
    """
    record = answer.json()
    if not isinstance(record, Mapping):
        raise answer.malformed(f"expected an object with '{fields.results}'")
    results = record.get(fields.results)
    if results is None and any(name in record for name in fields.besides):
        return []
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise answer.malformed(f"expected a list of objects in '{fields.results}'")
    usable = (hit for hit in (_hit(result, fields) for result in results) if hit.text or hit.url)
    hits = list(itertools.islice(usable, top_k))
    if results and not hits:
        raise answer.malformed(
            f"expected '{fields.text}' or '{fields.url}' in the results, got neither in any"
        )
    return hits


def _hit(result: Mapping[str, Json], fields: ResultFields) -> Hit:
    url = _string(result, fields.url)
    return Hit(url, plain_text(_string(result, fields.text)), plain_text(_string(result, "title")), url)


def _string(result: Mapping[str, Json], key: str) -> str:
    value = result.get(key)
    return value if isinstance(value, str) else ""


_BING = "https://www.bing.com/search"
_RESULTS_OF_A_PAGE = 10
_BING_FIELDS = ResultFields("organic", "description", "link", besides=("general", "input"))
_CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")


class BrightDataSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes; `key` is sent as a bearer token."""

    name = "brightdata"

    def __init__(self, client: HttpClient, key: str, config: BrightDataSearchConfig) -> None:
        self._client, self._key, self._config = client, key, config
        self._address = f"{config.url.rstrip('/')}/request"
        self.identity: Mapping[str, Json] = {
            "address": self._address,
            "engine": "bing",
            "country": config.country,
            "market": config.market,
            # Left out without the key, so that caches from before there was one still hold.
            **({} if config.language is None else {"language": config.language}),
        }

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:  # noqa: ARG002 - has none
        """Return at most `top_k` organic results."""
        body: dict[str, Json] = {"zone": self._config.zone, "url": self._page(query, top_k), "format": "raw"}
        headers = {"Authorization": f"Bearer {self._key}"}
        answer = await self._client.post_json(self._address, body, headers=headers)
        return read_hits(answer, _BING_FIELDS, top_k)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _page(self, query: str, top_k: int) -> str:
        market = self._config.market or ("zh-CN" if _CHINESE.search(query) else "en-US")
        parameters = {
            "q": query,
            "mkt": market,
            "setLang": self._config.language or market,
            "cc": self._config.country,
            "brd_json": "1",
        }
        if top_k > _RESULTS_OF_A_PAGE:
            parameters["count"] = str(top_k)
        return f"{_BING}?{urlencode(parameters)}"


_GOOGLE_FIELDS = ResultFields("organic", "snippet", "link", besides=("searchParameters",))


class SerperSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes; `key` is sent as X-API-KEY."""

    name = "serper"

    def __init__(self, client: HttpClient, key: str, config: SerperSearchConfig) -> None:
        self._client, self._key = client, key
        self._address = f"{config.url.rstrip('/')}/search"
        self._locale = {"gl": config.country, "hl": config.language}
        self.identity: Mapping[str, Json] = {"address": self._address, **self._locale}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:  # noqa: ARG002 - has none
        """Return at most `top_k` organic results."""
        body: dict[str, Json] = {"q": query, "num": top_k, **self._locale}
        answer = await self._client.post_json(self._address, body, headers={"X-API-KEY": self._key})
        return read_hits(answer, _GOOGLE_FIELDS, top_k)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


_SEARXNG_FIELDS = ResultFields("results", "content", "url")


class SearxngSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes."""

    name = "searxng"

    def __init__(self, client: HttpClient, config: SearxngSearchConfig) -> None:
        self._client = client
        self._address = f"{config.url.rstrip('/')}/search"
        parameters = {"language": config.language, "engines": config.engines, "categories": config.categories}
        self._parameters = {name: value for name, value in parameters.items() if value}
        self.identity: Mapping[str, Json] = {"address": self._address, **self._parameters}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:  # noqa: ARG002 - has none
        """Return the first `top_k` results; SearXNG always returns one page of results, so there may be fewer.

        Raises:
            RequestFailedError: The request failed, or found nothing because search engines did not answer.
            ServiceDownError: The service is down, or does not serve JSON.
        """
        try:
            answer = await self._client.get(
                self._address, params={"q": query, "format": "json", **self._parameters}
            )
        except ServiceDownError as error:
            if "HTTP 403" not in str(error):
                raise
            raise ServiceDownError(f"{error} Add json to search.formats in SearXNG's settings.yml.") from None
        hits = read_hits(answer, _SEARXNG_FIELDS, top_k)
        if not hits and (silent := _silent_engines(answer)):
            raise answer.malformed(f"nothing found, and {silent} search engines did not answer")
        return hits

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _silent_engines(answer: Answer) -> int:
    record = answer.json()
    silent = record.get("unresponsive_engines") if isinstance(record, Mapping) else None
    return len(silent) if isinstance(silent, list) else 0
