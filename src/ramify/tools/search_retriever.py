"""Search provider `retriever`: a retrieval service with the routes of FlashRAG and Tool-Star, or of Search-R1."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ramify.core.errors import ServiceDownError
from ramify.core.protocols import Hit, Json
from ramify.net.client import Answer, HttpClient
from ramify.net.failures import RequestFailedError
from ramify.tools.configs import RetrieverSearchConfig

_BATCH_SECONDS = 0.01
_Group: TypeAlias = tuple[int, str | None]
"""top_k and collection: the same for all queries of one request."""


@dataclass(frozen=True, slots=True)
class _PendingQuery:
    query: str
    hits: "asyncio.Future[list[Hit]]"


class RetrieverSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes."""

    name = "retriever"

    def __init__(self, client: HttpClient, config: RetrieverSearchConfig) -> None:
        self._client, self._base, self._style = client, config.url.rstrip("/"), config.style
        self._batch_size = config.batch_size
        self._batches: dict[_Group, list[_PendingQuery]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.identity: Mapping[str, Json] = {"address": self._base, "style": config.style}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """Return at most `top_k` passages; `collection` is sent too, for services that support it (`ramify search-serve`)."""
        if self._batch_size == 1:
            return await self._search_one(query, top_k, collection)
        group = (top_k, collection)
        batch = self._batches.setdefault(group, [])
        hits: asyncio.Future[list[Hit]] = asyncio.get_running_loop().create_future()
        batch.append(_PendingQuery(query, hits))
        if len(batch) == 1:
            self._start(self._send_later(group, batch))
        if len(batch) == self._batch_size:
            del self._batches[group]
            self._start(self._send(group, batch))
        return await hits

    async def close(self) -> None:
        """Cancel pending searches, and close all connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for batch in self._batches.values():
            for pending in batch:
                pending.hits.cancel()
        self._batches.clear()
        await self._client.close()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_later(self, group: _Group, batch: list[_PendingQuery]) -> None:
        await asyncio.sleep(_BATCH_SECONDS)
        if self._batches.get(group) is batch:  # else it was full, and has been sent
            del self._batches[group]
            await self._send(group, batch)

    async def _send(self, group: _Group, batch: list[_PendingQuery]) -> None:
        """Send the queries of a batch whose callers still wait, and deliver the answers."""
        waiting = [pending for pending in batch if not pending.hits.done()]
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
