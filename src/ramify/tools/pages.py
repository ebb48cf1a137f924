"""Pages as the browser tool uses them: looked up by address, cached, and without error pages.

Two sources fetch them: this machine, which contacts only public addresses and checks each redirect, or Jina's Reader, which
renders pages in a browser (GET https://r.jina.ai/ADDRESS, in JSON mode; written from its documentation and tested
against a local server with the same protocol, not on the real service).

Of a page, the model is shown the part that a search engine's snippet quotes, as in the released code of Tool-Star (arXiv
2505.16410) and of ARPO's deep-search evaluation (arXiv 2507.19849): the sentence whose set of words has the highest F1
with that of the snippet, plus a number of characters on either side; or the beginning of the page if no sentence is near
enough. Text in scripts without blanks (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan), and Korean, is compared by pairs
of neighbouring characters; the released code uses a word segmenter, for Chinese only.
"""

import asyncio
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final, Protocol

from ramify.core.errors import ServiceDownError
from ramify.core.protocols import Cache, CacheKey, Json
from ramify.net.addresses import GuardedTransport, check_url, join_url
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.exchange import Answer
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.wire import Transport
from ramify.runtime.call_clock import slot_of
from ramify.tools.configs import BrowserConfig
from ramify.tools.documents import Document, DocumentReader, charset_of, kind_of

_MIN_CHARS: Final = 50
_MIN_WORDS: Final = 20
_ERROR_WORDS: Final = 64
_CHARS_A_WORD: Final = 3
"""Characters that count as one word in scripts whose letters stand for sounds and are written without blanks."""
_CJK_WIDTH: Final = 2
"""Letters that a Chinese, Japanese or Korean character counts as where a page must have `_MIN_CHARS`."""
_ERROR_PHRASES: Final = (
    "access denied", "access to this page has been denied", "are you a robot", "bad gateway", "captcha",
    "checking your browser", "enable cookies", "enable javascript", "error 404", "error 500", "forbidden",
    "internal server error", "javascript is disabled", "javascript is required", "just a moment", "not found",
    "page isn't available", "service unavailable", "something went wrong", "too many requests", "unusual traffic",
    "verify you are human", "you have been blocked", "页面不存在", "頁面不存在", "找不到页面", "访问被拒绝", "見つかりません",
)  # fmt: skip


READS_TO_STOP: Final = 50
"""If so many reads failed and none worked, the browser reads nothing, and the run ends."""


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
        """Return title and text of a page.

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
        """Fetch nothing yet. `close` closes the source; whoever creates `cache` closes it."""
        self._source, self._cache = source, cache
        self._failed: Counter[str] = Counter()
        self._has_read = False

    async def read(self, url: str) -> Document:
        """Return title and text of the page at `url`.

        Raises:
            RequestFailedError: The page cannot be fetched, has hardly any text, or is an error page.
            ServiceDownError: The service that fetches pages is down or refuses the key, or the first `READS_TO_STOP` reads all
                failed.
        """
        self._require_success()
        try:
            document = await self._read(url)
        except RequestFailedError as error:
            self._failed[error.kind.value] += 1
            self._require_success()
            raise
        except asyncio.CancelledError:
            # The caller waits no longer.
            self._failed[FailureKind.TIMEOUT.value] += 1
            raise
        self._has_read = True
        return document

    def _require_success(self) -> None:
        if not self._has_read and self._failed.total() >= READS_TO_STOP:
            kinds = ", ".join(f"{name} {n}" for name, n in self._failed.most_common())
            raise ServiceDownError(
                f"tools.browser: the first {self._failed.total()} page reads all failed ({kinds}), so the policy sees snippets only. "
                "Check source, networks and the connection"
            )

    async def _read(self, url: str) -> Document:
        address = check_url(url)
        if self._cache is None:
            return await self._fresh(address)

        async def make() -> Json:
            document = await self._fresh(address)
            return {"title": document.title, "text": document.text}

        key = CacheKey("page", self._source.name, self._source.identity, address)
        page = await self._cache.fetch(key, make)
        title, text = (page.get("title"), page.get("text")) if isinstance(page, Mapping) else (None, None)
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
    """Return why a page is left out, or None: Tool-Star's rule (arXiv 2505.16410, released code) with our own error phrases.

    A page is left out if it has fewer than 50 characters or 20 words, or fewer than 64 words and an error phrase, unless the page
    is about something else: it tells of the phrase, and speaks to nobody.
    """
    count = count_words(text, _ERROR_WORDS)
    if count < _MIN_WORDS or (len(text) < _MIN_CHARS and _width(text) < _MIN_CHARS):
        return "the page has hardly any text"
    if count < _ERROR_WORDS:
        folded = text.casefold().replace("\u2019", "'")
        phrase = next((phrase for phrase in _ERROR_PHRASES if phrase in folded), None)
        if phrase is not None and _is_error_page(folded):
            return f"the page says {phrase!r}"
    return None


def _width(text: str) -> int:
    return len(text) + (_CJK_WIDTH - 1) * len(_CJK_RUN.findall(text))


def _is_error_page(folded: str) -> bool:
    """Return True if a page with an error phrase has it alone in a sentence, or speaks to its reader, and defines no error."""
    pieces = [folded[start:end] for start, end in sentences(folded)]
    named = [piece for piece in pieces if any(phrase in piece for phrase in _ERROR_PHRASES)]
    if any(_DEFINES.search(piece) is not None and _ADDRESSES.search(piece) is None for piece in named):
        return False
    return any(map(_is_bare, named)) or any(_TO_READER.search(piece) is not None for piece in pieces)


def _is_bare(piece: str) -> bool:
    """Return True if a sentence consists of error phrases: "404 Not Found", but not "Not Found (album)"."""
    for phrase in _ERROR_PHRASES:
        piece = piece.replace(phrase, " ")
    return all(word.isdecimal() or word in _ERROR_WORDS_ALONE for word in re.findall(r"\w+", piece))


_ACCEPTED = (
    "text/html,application/xhtml+xml,application/pdf,text/plain;q=0.9,application/json;q=0.8,*/*;q=0.1"
)


_USER_AGENT: Final = "Mozilla/5.0 (compatible; ramify)"
"""Many sites refuse programs that do not look like a browser."""
_MAX_REDIRECTS: Final = 5


class GuardedPages:
    """Implements `PageSource` with requests from this machine."""

    name = "guarded"

    def __init__(self, config: BrowserConfig, transport: Transport | None = None) -> None:
        """Open no connection yet.

        Args:
            config: Limits.
            transport: Opens connections; None: a `GuardedTransport`, which checks every address.
        """
        self._config = config
        limits = HttpSettings(
            timeout_seconds=config.page_seconds,
            attempts=2,
            max_backoff_seconds=2.0,
            max_bytes=config.max_bytes,
            in_flight=config.in_flight,
        )
        # The wait for a slot does not count toward a page's time limit.
        self._slots = asyncio.Semaphore(config.in_flight)
        guarded = transport or GuardedTransport(tuple(map(ip_network, config.networks)))
        self._client = HttpClient("pages", limits, transport=guarded, many_hosts=True)
        self._reader = DocumentReader(max_chars=config.max_chars)
        self.identity: Mapping[str, Json] = {"max_chars": config.max_chars, "user_agent": _USER_AGENT}

    async def read(self, url: str) -> Document:
        """Fetch a page and read its text.

        Raises:
            RequestFailedError: The page cannot be fetched, or has no text.
        """
        try:
            async with slot_of(self._slots), asyncio.timeout(self._config.page_seconds):
                answer = await self._fetch(url)
        except TimeoutError:
            seconds = self._config.page_seconds
            raise RequestFailedError(FailureKind.TIMEOUT, f"no page within {seconds:g} s") from None
        kind = kind_of(answer.content_type, answer.body)
        return await self._reader.read(kind, charset_of(answer.content_type), answer.body)

    async def close(self) -> None:
        """Close connections and end processes; closing twice is allowed."""
        await self._client.close()
        await self._reader.close()

    async def _fetch(self, url: str) -> Answer:
        headers = {"accept": _ACCEPTED, "user-agent": _USER_AGENT}
        address = check_url(url)
        for _ in range(_MAX_REDIRECTS + 1):
            answer = await self._client.get(address, headers=headers)
            if answer.status < 300:
                return answer
            if not answer.location:
                raise RequestFailedError(FailureKind.REDIRECTS, "it redirects but does not say where")
            address = check_url(join_url(address, answer.location))
        raise RequestFailedError(FailureKind.REDIRECTS, f"more than {_MAX_REDIRECTS} redirects")


# No pattern here matches across an opening bracket, so that a text of many brackets does not take quadratic time.
_TARGET = r"\([^)\s\[]{0,2000}+(?:\s[^)\n\[]{0,500}+)?\)"
_IMAGE = re.compile(r"!\[[^\[\]\n]{0,1000}+\]" + _TARGET)
_AT_ONE_TIME = 20_000
"""Characters of a line that are searched at once; a link across this boundary is not removed."""
_LINK = re.compile(r"\[([^\[\]\n]{0,1000}+)\]" + _TARGET)
_JINA: Final = "https://r.jina.ai"


class JinaPages:
    """Implements `PageSource` with a service that fetches the pages."""

    name = "jina"

    def __init__(self, client: HttpClient, config: BrowserConfig, key: str | None = None) -> None:
        """Open no connection yet.

        Args:
            client: A client for this service alone. Unreadable pages count as failures of the service, so allow many
                failures before it counts as down.
            config: Its address, and limits.
            key: Key of the service; without a key (None) it answers at a lower rate.
        """
        self._client, self._key = client, key
        self._base_url = (config.url or _JINA).rstrip("/")
        self._max_chars = config.max_chars
        self.identity: Mapping[str, Json] = {"base_url": self._base_url, "max_chars": self._max_chars}

    async def read(self, url: str) -> Document:
        """Let the service read a page.

        Raises:
            RequestFailedError: The page cannot be fetched.
            ServiceDownError: The service is down, or refuses the key.
        """
        headers = {"accept": "application/json"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        answer = await self._client.get(f"{self._base_url}/{check_url(url)}", headers=headers)
        read = answer.json()
        data = read.get("data") if isinstance(read, Mapping) else None
        content = data.get("content") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(content, str):
            raise answer.malformed("expected {data: {title, content}}")
        title = data.get("title")
        # Links are removed, so clean more text than is returned. In a thread, so as not to block the event loop.
        text = await asyncio.to_thread(_without_links, content[: 10 * self._max_chars])
        return Document(
            _storable(title)[:300] if isinstance(title, str) else "", _storable(text)[: self._max_chars]
        )

    async def close(self) -> None:
        """Close all connections; closing twice is allowed."""
        await self._client.close()


def _without_links(markdown: str) -> str:
    """Remove links and images, in short pieces: no link crosses a line end, and one long `re` call blocks all threads."""
    return "\n".join(
        "".join(
            _LINK.sub(r"\1", _IMAGE.sub("", line[at : at + _AT_ONE_TIME]))
            for at in range(0, len(line), _AT_ONE_TIME)
        )
        for line in markdown.split("\n")
    )


def _storable(text: str) -> str:
    """Replace lone surrogates, which JSON can contain but no file can store."""
    return text.encode("utf-8", "replace").decode("utf-8")


_CJK: Final = r"\u3040-\u30ff\u3100-\u312f\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
# Thai, Lao, Tibetan, Burmese and Khmer, with their vowel signs and without their punctuation.
_UNSPACED: Final = r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf\u0f00\u0f40-\u0fbc\u1000-\u1049\u1050-\u109f\u1780-\u17d3\u17d7"
_RUN: Final = re.compile(rf"[{_CJK}]+|[{_UNSPACED}]+|[^\W_{_CJK}{_UNSPACED}]+")
_LATIN_RUN: Final = re.compile(r"[a-z0-9]+")
_CJK_RUN: Final = re.compile(rf"[{_CJK}]")
_UNSPACED_RUN: Final = re.compile(rf"[{_UNSPACED}]")
_PAIRED_RUN: Final = re.compile(rf"[{_CJK}{_UNSPACED}]")
_DEFINES: Final = re.compile(
    r"\b(?:is|are|was|were) (?:an?|the|one|any|when)\b|\b(?:means|indicates?|refers? to|stands? for|describes?|(?:status|response) codes?)\b"
)
_ADDRESSES: Final = re.compile(
    r"\b(?:you|your|we|our|us|please|this page|this server|this site)\b|\bthe requested\b"
)
_TO_READER: Final = re.compile(rf"{_ADDRESSES.pattern}|\bthe page\b|[您你请請]|抱歉|ください|申し訳|お探し")
_ERROR_WORDS_ALONE: Final = frozenset({"error", "http", "page", "oops", "sorry", "status", "code", "the"})
_MARKUP: Final = re.compile(r"</?(?:b|strong|em|i|mark)>", re.IGNORECASE)
# A sentence ends at a full-width mark, at a Latin one before a blank, and at the end of a line.
_SENTENCE_END: Final = re.compile(
    r"[\u3002\uff01\uff1f\uff1b\u0f0d\u104b\u17d4]+[\u201d\u2019\u300d\u300f]*|[.!?]+[\"')\]]*(?=\s)|\n+"
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a page; `f1` is the F1 of its sentence, or 0 for the beginning of the page."""

    text: str
    f1: float


def passage_near(
    text: str, snippet: str, config: BrowserConfig, *, searched_chars: int = 50_000, min_f1: float = 0.2
) -> Passage:
    """Return the passage of `text` around the sentence nearest to `snippet`; of equally near sentences the first.

    The first `searched_chars` characters are searched, and the sentence's F1 must be above `min_f1`.
    """
    snippet_words = words(_MARKUP.sub("", snippet))
    best, at = min_f1, None
    for start, end in sentences(text[:searched_chars]) if snippet_words else ():
        sentence = words(text[start:end])
        f1 = 2 * len(snippet_words & sentence) / (len(snippet_words) + len(sentence))
        if f1 > best:
            best, at = f1, (start, end)
    if at is None:
        return Passage(text[: config.head_chars].strip(), 0.0)
    first = max(0, at[0] - config.context_chars)
    return Passage(text[first : at[1] + config.context_chars].strip(), best)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end position of each sentence."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        yield start, end.end()
        start = end.end()
    if start < len(text):
        yield start, len(text)


def words(text: str) -> frozenset[str]:
    """Return the distinct words of a text, case-folded; a run of a script without blanks gives its pairs of neighbours."""
    if text.isascii():
        return frozenset(_LATIN_RUN.findall(text.lower()))
    distinct: set[str] = set()
    for run in _RUN.findall(unicodedata.normalize("NFKC", text).casefold()):
        if len(run) > 1 and _PAIRED_RUN.match(run):
            distinct.update(map(str.__add__, run, run[1:]))
        else:
            distinct.add(run)
    return frozenset(distinct)


def count_words(text: str, limit: int) -> int:
    """Return the number of words, at most `limit`.

    Each Chinese, Japanese or Korean character counts as one, and so do three characters of another script without blanks.
    """
    count = 0
    for run in _RUN.finditer(text):
        if _CJK_RUN.match(run[0]):
            count += len(run[0])
        else:
            count += -(-len(run[0]) // _CHARS_A_WORD) if _UNSPACED_RUN.match(run[0]) else 1
        if count >= limit:
            return limit
    return count
