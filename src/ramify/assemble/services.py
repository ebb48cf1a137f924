"""Builds the services of a checked recipe: search providers, page sources, chat models, caches."""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ramify.config.schema_parts import SearchSection
from ramify.core.protocols import Cache, ChatModel, Json, SearchProvider
from ramify.net.configs import ChatConfig, HttpConfig
from ramify.tools.configs import (
    BrightDataSearchConfig,
    BrowserConfig,
    CacheConfig,
    DenseSearchConfig,
    LocalSearchConfig,
    RetrieverSearchConfig,
    SearxngSearchConfig,
    SerperSearchConfig,
)

if TYPE_CHECKING:
    from ramify.net.client import HttpClient
    from ramify.tools.pages import PageSource

_DAY_SECONDS = 86_400.0
_LOG = logging.getLogger(__name__)


def http_client(name: str, config: HttpConfig, key: str | None = None, **settings: int) -> "HttpClient":
    """Return a client for one service; `key` is kept out of all messages, `settings` are others of `HttpSettings`."""
    from ramify.net.client import HttpClient, HttpSettings

    return HttpClient(name, HttpSettings(**config.values(), **settings), secrets=[key] if key else [])


def build_provider(
    config: SearchSection, offline: bool, note: Callable[[str], None] = lambda _: None
) -> SearchProvider:
    """Build the search provider.

    Args:
        config: The recipe's search section.
        offline: The provider will not be called, so it needs no key.
        note: Receives a note when an index is built, which may take long.

    Raises:
        DataError: The passage file cannot be read.
        MachineError: The environment variable with its key is not set, or a library is missing.
    """
    match config:
        case LocalSearchConfig():
            from ramify.tools.index_folder import open_index
            from ramify.tools.passage_index import LocalSearch

            return LocalSearch(open_index(config.corpus, config.index, note=note))
        case DenseSearchConfig():
            from ramify.tools.search_dense import DenseSearch, load_embedder

            return DenseSearch(config, load_embedder(config.model), note)
        case RetrieverSearchConfig():
            from ramify.tools.search_http import RetrieverSearch

            return RetrieverSearch(http_client("retriever", config.http), config)
        case SearxngSearchConfig():
            from ramify.tools.search_http import SearxngSearch

            return SearxngSearch(http_client("searxng", config.http), config)
        case BrightDataSearchConfig():
            from ramify.tools.search_http import BrightDataSearch

            key = _key("BRIGHTDATA_API_KEY", offline)
            return BrightDataSearch(http_client("brightdata", config.http, key), key, config)
        case SerperSearchConfig():
            from ramify.tools.search_http import SerperSearch

            key = _key("SERPER_API_KEY", offline)
            return SerperSearch(http_client("serper", config.http, key), key, config)


def chat_model(
    name: str,
    config: ChatConfig,
    offline: bool = False,
    whole: bool = False,
    extra: Mapping[str, Json] = MappingProxyType({}),
    **settings: int,
) -> ChatModel:
    """Return a chat model; `name` is its service's name in messages, `settings` are as for `http_client`.

    With `whole` an answer that its most tokens cut is a failed request. `extra` goes with each request.

    Raises:
        MachineError: The environment variable with its key is not set.
    """
    from ramify.engines.chat_models import OpenAIChat
    from ramify.engines.openai import bearer
    from ramify.engines.served_models import ServedModel

    key = None if config.key_variable is None else _key(config.key_variable, offline)
    client = http_client(name, config.http, key, **settings)
    served = ServedModel(f"{name}.model", config.model, bearer(key))
    return OpenAIChat(
        client,
        base_url=config.url,
        model=config.model,
        key=key,
        extra=extra,
        whole=whole,
        served=served,
        note=lambda line: _LOG.warning(f"{name}: {line}"),
    )


def page_source(config: BrowserConfig) -> "PageSource":
    """Return the source that fetches pages; the caller closes it."""
    from ramify.net.secrets import read_optional_key
    from ramify.tools.pages import GuardedPages, JinaPages

    if config.source == "guarded":
        return GuardedPages(config)
    key = read_optional_key("JINA_API_KEY")
    http = HttpConfig(timeout_seconds=config.page_seconds, in_flight=config.in_flight)
    # Unreadable pages count as failures of the service, so allow many.
    client = http_client("jina", http, key, failures_to_open=64)
    return JinaPages(client, config, key)


def _key(variable: str, offline: bool) -> str:
    from ramify.net.secrets import read_key

    return "" if offline else read_key(variable)


def build_cache(config: CacheConfig) -> Cache:
    """Open the cache, which is a cassette if the recipe's mode says so.

    Raises:
        DataError: The file is something else, damaged, or written by a newer ramify; a cassette to replay is missing.
        MachineError: The file cannot be written, or another run records into it.
    """
    from ramify.cache.sqlite import CacheMode, SqliteCache, SqliteSettings

    settings = SqliteSettings(config.days * _DAY_SECONDS, config.empty_days * _DAY_SECONDS)
    return SqliteCache(config.path, settings, mode=CacheMode(config.mode))
