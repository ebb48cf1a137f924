"""Builds the services of a checked recipe: search providers, page sources, chat models."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ramify.config.schema_tools import (
    BrightDataSearchSection,
    BrowserSection,
    CacheSection,
    DenseSearchSection,
    HttpSection,
    LocalSearchSection,
    RetrieverSearchSection,
    SearchSection,
    SearxngSearchSection,
)
from ramify.core.protocols import Cache, ChatModel, SearchProvider

if TYPE_CHECKING:
    from ramify.net.client import HttpClient
    from ramify.tools.pages import PageSource

_DAY_SECONDS = 86_400.0


def http_client(name: str, section: HttpSection, *secrets: str, failures_to_open: int = 8) -> "HttpClient":
    """A client for one service; `secrets` are keys to keep out of all messages.

    After `failures_to_open` failures in a row the service counts as down.
    """
    from ramify.net.client import HttpClient, HttpSettings

    settings = HttpSettings(
        timeout_seconds=section.timeout_seconds,
        attempts=section.attempts,
        requests_per_second=section.requests_per_second,
        in_flight=section.in_flight,
        max_requests=section.max_requests,
        failures_to_open=failures_to_open,
    )
    return HttpClient(name, settings, secrets=secrets)


def build_provider(
    section: SearchSection, offline: bool, note: Callable[[str], None] = lambda _: None
) -> SearchProvider:
    """The search provider.

    Args:
        section: The recipe's search section.
        offline: The provider will not be called, so it needs no key.
        note: Receives a note when an index is built, which may take long.

    Raises:
        DataError: The passage file cannot be read.
        MachineError: The environment variable with its key is not set, or a library is missing.
    """
    if isinstance(section, LocalSearchSection):
        return _local(section, note)
    if isinstance(section, DenseSearchSection):
        return _dense(section, note)
    if isinstance(section, RetrieverSearchSection):
        from ramify.tools.search_retriever import RetrieverSearch

        return RetrieverSearch(
            http_client("retriever", section.http),
            base_url=section.url,
            style=section.style,
            batch_size=section.batch_size,
        )
    if isinstance(section, SearxngSearchSection):
        from ramify.tools.web_search import SearxngSearch

        return SearxngSearch(
            http_client("searxng", section.http),
            base_url=section.url,
            language=section.language,
            engines=section.engines,
            categories=section.categories,
        )
    if isinstance(section, BrightDataSearchSection):
        from ramify.tools.web_search import BrightDataSearch

        key = _key("BRIGHTDATA_API_KEY", offline)
        return BrightDataSearch(
            http_client("brightdata", section.http, key),
            key,
            zone=section.zone,
            country=section.country,
            market=section.market,
            base_url=section.url,
        )
    from ramify.tools.web_search import SerperSearch

    key = _key("SERPER_API_KEY", offline)
    return SerperSearch(
        http_client("serper", section.http, key),
        key,
        country=section.country,
        language=section.language,
        base_url=section.url,
    )


def chat_model(
    name: str,
    url: str,
    model: str,
    key_variable: str | None,
    http: HttpSection,
    offline: bool = False,
    failures_to_open: int = 8,
) -> ChatModel:
    """A chat model; `name` is its service's name in messages.

    Raises:
        MachineError: The environment variable with its key is not set.
    """
    from ramify.engines.openai import OpenAIChat

    key = None if key_variable is None else _key(key_variable, offline)
    return OpenAIChat(
        http_client(name, http, *([key] if key else []), failures_to_open=failures_to_open),
        base_url=url,
        model=model,
        key=key,
    )


def page_source(section: BrowserSection) -> "PageSource":
    """The source that fetches pages; the caller closes it."""
    if section.source == "jina":
        from ramify.net.secrets import read_optional_key
        from ramify.tools.pages import JinaPages

        key = read_optional_key("JINA_API_KEY")
        http = HttpSection(timeout_seconds=section.page_seconds, in_flight=section.in_flight)
        # Unreadable pages count as failures of the service, so allow many.
        client = http_client("jina", http, *([key] if key else []), failures_to_open=64)
        return JinaPages(client, key=key, max_chars=section.max_chars)
    from ramify.tools.pages import GuardedPages, GuardedSettings

    return GuardedPages(
        GuardedSettings(
            timeout_seconds=section.page_seconds,
            max_bytes=section.max_bytes,
            max_chars=section.max_chars,
            in_flight=section.in_flight,
            networks=section.networks,
        )
    )


def _local(section: LocalSearchSection, note: Callable[[str], None]) -> SearchProvider:
    from ramify.tools.passage_index import LocalSearch, PassageIndex

    return LocalSearch(PassageIndex.open(section.corpus, section.index, note=note))


def _dense(section: DenseSearchSection, note: Callable[[str], None]) -> SearchProvider:
    from ramify.tools.search_dense import DenseSearch, load_embedder

    return DenseSearch(
        section.corpus,
        load_embedder(section.model),
        model=section.model,
        query_prefix=section.query_prefix,
        passage_prefix=section.passage_prefix,
        folder=section.index,
        note=note,
    )


def _key(variable: str, offline: bool) -> str:
    from ramify.net.secrets import read_key

    return "" if offline else read_key(variable)


def build_cache(section: CacheSection) -> Cache:
    """The cache, or a cassette if the recipe's mode asks for one.

    Raises:
        DataError: The file is something else, damaged, or written by a newer ramify; a cassette to replay is missing.
        MachineError: The file cannot be written.
    """
    if section.mode == "cache":
        from ramify.cache.sqlite import SqliteCache, SqliteSettings

        return SqliteCache(
            section.path, SqliteSettings(section.days * _DAY_SECONDS, section.empty_days * _DAY_SECONDS)
        )
    from ramify.cache.cassette import Cassette, CassetteMode, FailureForm
    from ramify.net.failures import RequestFailedError

    failures = FailureForm(RequestFailedError, RequestFailedError.as_json, RequestFailedError.from_json)
    return Cassette(section.path, CassetteMode(section.mode), failures)
