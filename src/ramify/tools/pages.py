"""Pages as the browser tool uses them: looked up by address, cached, and without error pages."""

from collections.abc import Mapping
from typing import Final, Protocol

from ramify.core.protocols import Cache, CacheKey, Json
from ramify.net.addresses import check_url
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.documents import Document
from ramify.tools.passage_near import count_words

_MIN_CHARS: Final = 50
_MIN_WORDS: Final = 20
_ERROR_WORDS: Final = 64
_ERROR_PHRASES: Final = (
    "access denied", "access to this page has been denied", "are you a robot", "bad gateway", "captcha",
    "checking your browser", "enable cookies", "enable javascript", "error 404", "error 500", "forbidden",
    "internal server error", "javascript is disabled", "javascript is required", "just a moment", "not found",
    "page isn't available", "service unavailable", "something went wrong", "too many requests", "unusual traffic",
    "verify you are human",
)  # fmt: skip


class PageSource(Protocol):
    """Fetches pages."""

    @property
    def name(self) -> str:
        """The source's name in the recipe: "guarded" or "jina"."""
        ...

    @property
    def identity(self) -> Mapping[str, Json]:
        """Everything that a page's text depends on besides its address; part of the cache key."""
        ...

    async def read(self, url: str) -> Document:
        """Title and text of a page.

        Raises:
            RequestFailedError: The page cannot be fetched, or has no text.
            ServiceDownError: The service that fetches pages is down, or refuses the key.
        """
        ...

    async def close(self) -> None:
        """Free all resources; closing twice is allowed."""
        ...


class Pages:
    """Pages of one source. Failures are not cached, since a page may be available the next time."""

    def __init__(self, source: PageSource, cache: Cache | None = None) -> None:
        """Fetches nothing yet. `close` closes the source; whoever creates `cache` closes it."""
        self._source, self._cache = source, cache

    async def read(self, url: str) -> Document:
        """Title and text of the page at `url`.

        Raises:
            RequestFailedError: The page cannot be fetched, has hardly any text, or is an error page.
            ServiceDownError: The service that fetches pages is down, or refuses the key.
        """
        address = str(check_url(url))
        if self._cache is None:
            return await self._fresh(address)

        async def make() -> Json:
            document = await self._fresh(address)
            return {"title": document.title, "text": document.text}

        key = CacheKey("page", self._source.name, self._source.identity, address)
        kept = await self._cache.fetch(key, make)
        title, text = (kept.get("title"), kept.get("text")) if isinstance(kept, Mapping) else (None, None)
        if not isinstance(title, str) or not isinstance(text, str):
            raise RequestFailedError(FailureKind.MALFORMED, "the cache holds something that is no page")
        return Document(title, text)

    async def close(self) -> None:
        """Close the source."""
        await self._source.close()

    async def _fresh(self, address: str) -> Document:
        document = await self._source.read(address)
        if (fault := fault_of(document.text)) is not None:
            raise RequestFailedError(FailureKind.MALFORMED, fault)
        return document


def fault_of(text: str) -> str | None:
    """Why a page is left out, or None: Tool-Star's rule (arXiv 2505.16410, released code) with our own error phrases.

    A page is left out if it has fewer than 50 characters or 20 words, or fewer than 64 words and an error phrase.
    """
    count = count_words(text, _ERROR_WORDS)
    if len(text) < _MIN_CHARS or count < _MIN_WORDS:
        return "the page has hardly any text"
    if count < _ERROR_WORDS:
        folded = text.casefold().replace("\u2019", "'")
        if (phrase := next((phrase for phrase in _ERROR_PHRASES if phrase in folded), None)) is not None:
            return f"the page says {phrase!r}"
    return None
