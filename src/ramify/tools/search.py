"""The search tool: any search provider, with an optional cache."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import Cache, CacheKey, Hit, Json, SearchProvider, Tool, ToolSession
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.configs import SearchConfig
from ramify.tools.stateless import StatelessSession

NOTHING_FOUND = "No search results found."
"""The papers' tool uses the same text, so some entries of their cache contain it."""

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What to look for."}},
    "required": ["query"],
}
SPEC = ToolSpec(
    "search",
    "Search a collection of passages and read the best ones.",
    _PARAMETERS,
    forks=True,
    timeout_seconds=60.0,
)
"""As prompts show it; the deadlines are the recipe's."""

_QUOTE_INSIDE_WORD = re.compile(r'(?<=\w)"(?=\w)')
_UNPRINTABLE = ("Cc", "Cs")
_REASONS = {
    FailureKind.CONNECTION: "the service cannot be reached",
    FailureKind.TOO_MANY: "the service is busy",
    FailureKind.SERVER: "the service failed",
    FailureKind.CLIENT: "the service refused the query",
}


def clean(query: str) -> str:
    """Return a query as it is sent: without double quotes (exact phrases find little) and without control characters."""
    text = _QUOTE_INSIDE_WORD.sub(" ", query).replace('"', "")
    return " ".join("".join(" " if unicodedata.category(c) in _UNPRINTABLE else c for c in text).split())


def normalise(query: str) -> str:
    """Return a query as the cache key has it: case, blanks, quotes and variants of a character (NFKC) make no difference."""
    return clean(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", query).casefold()))


def cache_key(provider: SearchProvider, top_k: int, collection: str | None, query: str) -> CacheKey:
    """Return the cache key for an answer of `provider`; an imported cache must use the same keys."""
    parameters = {**provider.identity, "top_k": top_k, "collection": collection}
    return CacheKey("search", provider.name, parameters, normalise(query))


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The text that the model reads, and the ids of the passages in it."""

    text: str
    passages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchTool:
    """Searches for passages or pages.

    If the provider has collections, a problem whose info names a "collection" sees only the passages of that collection. A
    problem whose info lists pairs of passages under "ambiguous" marks the results that show both (`ToolResult.ambiguous`).
    """

    provider: SearchProvider
    cache: Cache | None = None
    config: SearchConfig = SearchConfig()

    @property
    def spec(self) -> ToolSpec:
        """Name, description, parameters, deadline."""
        return replace(
            SPEC, timeout_seconds=self.config.timeout_seconds, hedge_seconds=self.config.hedge_seconds
        )

    async def find(self, query: str, collection: str | None) -> Sequence[Hit] | str:
        """Return the provider's hits, or the text from an imported cache. An empty query is not sent, and finds nothing.

        Raises:
            RequestFailedError: This request failed.
            ServiceDownError: The service is down, or refuses the key.
        """
        cleaned = clean(query)
        if not cleaned:
            return ()
        if self.cache is None:
            return await self.provider.search(cleaned, self.config.top_k, collection)

        async def ask() -> Json:
            return [asdict(hit) for hit in await self.provider.search(cleaned, self.config.top_k, collection)]

        key = cache_key(self.provider, self.config.top_k, collection, query)
        return _cached_hits(await self.cache.fetch(key, ask))

    async def look_up(self, query: str, collection: str | None) -> SearchAnswer:
        """Return the text that answers a query; raises as `find` does."""
        hits = await self.find(query, collection)
        if isinstance(hits, str):
            return SearchAnswer(hits)
        shown: dict[str, str] = {}
        for hit in hits[: self.config.top_k]:
            snippet = " ".join(hit.text.split())[: self.config.snippet_chars].rstrip()
            if snippet:
                shown.setdefault(snippet, hit.id)
        if not shown:
            return SearchAnswer(NOTHING_FOUND)
        lines = [f"Page {i}: {s}" for i, s in enumerate(shown, 1)] if self.config.page_labels else list(shown)
        return SearchAnswer("\n".join(lines), tuple(shown.values()))

    async def open(self, problem: Problem) -> ToolSession:
        """Start a session that searches the problem's collection, if it names one."""
        run = partial(self.run, collection=collection_of(problem), contradictions=contradictions_of(problem))
        return StatelessSession(run)

    async def run(
        self, call: ToolCall, collection: str | None, contradictions: Sequence[frozenset[str]] = ()
    ) -> ToolResult:
        """Answer one query; `info["passages"]` has the ids of the passages shown.

        Raises:
            ServiceDownError: The service is down, or refuses the key; this ends the run.
        """
        query = query_of(call)
        if isinstance(query, ToolResult):
            return query
        try:
            answer = await self.look_up(query, collection)
        except RequestFailedError as error:
            return failed_search(call.id, error)
        status = ToolStatus.EMPTY if answer.text == NOTHING_FOUND else ToolStatus.OK
        ambiguous = any(pair <= set(answer.passages) for pair in contradictions)
        return ToolResult(
            call.id, status, answer.text, {"passages": list(answer.passages)}, ambiguous=ambiguous
        )


def collection_of(problem: Problem) -> str | None:
    """Return the collection that a problem's info names, if any."""
    collection = problem.info.get("collection")
    return None if collection is None else str(collection)


def contradictions_of(problem: Problem) -> tuple[frozenset[str], ...]:
    """Return the sets of passages that a problem's info lists as contradicting each other, if any."""
    listed = problem.info.get("ambiguous")
    pairs = listed if isinstance(listed, list | tuple) else ()
    return tuple(frozenset(map(str, pair)) for pair in pairs if isinstance(pair, list | tuple) and pair)


def query_of(call: ToolCall) -> str | ToolResult:
    """Return the query of a call, or the result for a malformed call."""
    query = call.arguments.get("query")
    if call.malformed is None and isinstance(query, str):
        return query
    reason = call.malformed or "expected a text argument 'query'"
    return ToolResult(call.id, ToolStatus.MALFORMED, f"search: {reason}")


def failed_search(call_id: str, error: RequestFailedError) -> ToolResult:
    """Return the result of a search that failed."""
    info = {"failure": error.kind.value}
    if error.kind is FailureKind.TIMEOUT:
        return ToolResult(call_id, ToolStatus.TIMEOUT, "The search took too long.", info)
    reason = _REASONS.get(error.kind, "the service's answer cannot be read")
    return ToolResult(call_id, ToolStatus.ERROR, f"The search failed: {reason}.", info)


def _cached_hits(answer: Json) -> Sequence[Hit] | str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, list) and all(map(_is_hit, answer)):
        return [Hit(**hit) for hit in answer]
    raise RequestFailedError(FailureKind.MALFORMED, "a cached answer is no list of hits")


def _is_hit(record: Json) -> bool:
    return (
        isinstance(record, dict)
        and record.keys() >= {"id", "text"}
        and record.keys() <= Hit.__dataclass_fields__.keys()
        and all(isinstance(value, str) for value in record.values())
    )


@dataclass(frozen=True, slots=True)
class SearchByBenchmark:
    """Implements `ramify.core.protocols.Tool`: a problem of a benchmark in `others` searches with that tool, any other with `usual`.

    It has no `close`: whoever creates it closes the searches.
    """

    usual: Tool
    others: Mapping[str, Tool]

    @property
    def spec(self) -> ToolSpec:
        """Return the usual tool's spec, with the longest of all time limits."""
        longest = max(tool.spec.timeout_seconds for tool in (self.usual, *self.others.values()))
        return replace(self.usual.spec, timeout_seconds=longest)

    async def open(self, problem: Problem) -> ToolSession:
        """Start a session of the problem's search."""
        return await self.others.get(str(problem.info.get("benchmark")), self.usual).open(problem)
