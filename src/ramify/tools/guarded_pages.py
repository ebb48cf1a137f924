"""Fetching pages from this machine: only public addresses, checked at each redirect, with limits on time and size."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from ramify.core.call_clock import place_in
from ramify.core.protocols import Json
from ramify.net.addresses import GuardedTransport, check_url, parse_networks
from ramify.net.client import Answer, HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.documents import Document, DocumentReader, charset_of, kind_of

_ACCEPTED = (
    "text/html,application/xhtml+xml,application/pdf,text/plain;q=0.9,application/json;q=0.8,*/*;q=0.1"
)


@dataclass(frozen=True, slots=True)
class GuardedSettings:
    """How pages are fetched.

    Attributes:
        timeout_seconds: From the request to the last byte, including redirects and a second attempt.
        max_bytes: Most bytes of a decompressed page; a larger page is refused.
        max_redirects: Most redirects to follow; each address is checked.
        max_chars: Most characters of a page's text; the rest is cut.
        read_seconds: Limit for extracting the text of one page.
        in_flight: Most pages fetched at the same time.
        user_agent: The User-Agent header; many sites refuse programs that do not look like a browser.
        networks: Networks that may be fetched although they are not public, such as "10.1.0.0/16" of an intranet.
    """

    timeout_seconds: float = 20.0
    max_bytes: int = 10_000_000
    max_redirects: int = 5
    max_chars: int = 50_000
    read_seconds: float = 10.0
    in_flight: int = 64
    user_agent: str = "Mozilla/5.0 (compatible; ramify)"
    networks: tuple[str, ...] = ()


class GuardedPages:
    """Implements `ramify.tools.pages.PageSource`."""

    def __init__(self, settings: GuardedSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Open no connection yet.

        Args:
            settings: Limits.
            transport: Opens connections; None: a `GuardedTransport`, which checks every address.

        Raises:
            ConfigError: A text in `networks` is not a network.
        """
        self._settings = settings
        limits = HttpSettings(
            timeout_seconds=settings.timeout_seconds,
            attempts=2,
            max_backoff_seconds=2.0,
            max_bytes=settings.max_bytes,
            in_flight=settings.in_flight,
        )
        # The wait for a slot does not count toward a page's time limit.
        self._slots = asyncio.Semaphore(settings.in_flight)
        guarded = transport or GuardedTransport(parse_networks(settings.networks))
        self._client = HttpClient("pages", limits, transport=guarded, many_hosts=True)
        self._reader = DocumentReader(max_chars=settings.max_chars, seconds=settings.read_seconds)

    @property
    def name(self) -> str:
        """The source's name in the recipe."""
        return "guarded"

    @property
    def identity(self) -> Mapping[str, Json]:
        """Everything that a page's text depends on besides its address."""
        return {"max_chars": self._settings.max_chars, "user_agent": self._settings.user_agent}

    async def read(self, url: str) -> Document:
        """Fetch a page and read its text.

        Raises:
            RequestFailedError: The page cannot be fetched, or has no text.
        """
        try:
            async with place_in(self._slots), asyncio.timeout(self._settings.timeout_seconds):
                answer = await self._fetch(url)
        except TimeoutError:
            seconds = self._settings.timeout_seconds
            raise RequestFailedError(FailureKind.TIMEOUT, f"no page within {seconds:g} s") from None
        kind = kind_of(answer.content_type, answer.body)
        return await self._reader.read(kind, charset_of(answer.content_type), answer.body)

    async def close(self) -> None:
        """Close connections and end processes; closing twice is allowed."""
        await self._client.close()
        await self._reader.close()

    async def _fetch(self, url: str) -> Answer:
        headers = {"accept": _ACCEPTED, "user-agent": self._settings.user_agent}
        address = check_url(url)
        for _ in range(self._settings.max_redirects + 1):
            answer = await self._client.get(str(address), headers=headers)
            if answer.status < 300:
                return answer
            if not answer.location:
                raise RequestFailedError(FailureKind.REDIRECTS, "it redirects but does not say where")
            try:
                address = check_url(str(address.join(answer.location)))
            except (httpx.InvalidURL, ValueError):
                raise RequestFailedError(
                    FailureKind.REDIRECTS, "it redirects to an invalid address"
                ) from None
        raise RequestFailedError(FailureKind.REDIRECTS, f"more than {self._settings.max_redirects} redirects")
