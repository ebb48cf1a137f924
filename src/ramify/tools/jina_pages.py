"""Reading pages through Jina's Reader, which renders them in a browser: GET https://r.jina.ai/ADDRESS, in JSON mode.

Written from its documentation and tested against a local server with the same protocol, not on the real service.
"""

import asyncio
import re
from collections.abc import Mapping

from ramify.core.protocols import Json
from ramify.net.addresses import check_url
from ramify.net.client import HttpClient
from ramify.tools.documents import Document

JINA_URL = "https://r.jina.ai"
JINA_KEY = "JINA_API_KEY"
"""The environment variable of its key; without a key the service answers at a lower rate."""

# No pattern here matches across an opening bracket, so that a text of many brackets does not take quadratic time.
_TARGET = r"\([^)\s\[]{0,2000}+(?:\s[^)\n\[]{0,500}+)?\)"
_IMAGE = re.compile(r"!\[[^\[\]\n]{0,1000}+\]" + _TARGET)
_AT_ONE_TIME = 20_000
"""Characters of a line that are searched at once; a link across this boundary is not removed."""
_LINK = re.compile(r"\[([^\[\]\n]{0,1000}+)\]" + _TARGET)


class JinaPages:
    """Implements `ramify.tools.pages.PageSource` with a service that fetches the pages."""

    def __init__(
        self, client: HttpClient, *, key: str | None = None, base_url: str = JINA_URL, max_chars: int = 50_000
    ) -> None:
        """Opens no connection yet.

        Args:
            client: A client for this service alone. Unreadable pages count as failures of the service, so allow many
                failures before it counts as down.
            key: Key of the service, or None.
            base_url: Address of the service, or of your own instance of it.
            max_chars: Most characters of a page's text; the rest is cut.
        """
        self._client, self._key = client, key
        self._base_url = base_url.rstrip("/")
        self._max_chars = max_chars

    @property
    def name(self) -> str:
        """The source's name in the recipe."""
        return "jina"

    @property
    def identity(self) -> Mapping[str, Json]:
        """Everything that a page's text depends on besides its address."""
        return {"base_url": self._base_url, "max_chars": self._max_chars}

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
        # Links are removed, so look at more text than is kept. In a thread, so as not to block the event loop.
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
