"""Pages read by Jina's Reader, which renders them in a browser: GET https://r.jina.ai/ADDRESS, in its JSON mode.

Written against its documentation and tried against a local server that speaks it; untested on the real service.
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
"""The environment variable of its key, which it can do without at a lower rate."""

# Nothing here reaches over an opening bracket, so that a text of brackets takes no quadratic time.
_TARGET = r"\([^)\s\[]{0,2000}+(?:\s[^)\n\[]{0,500}+)?\)"
_IMAGE = re.compile(r"!\[[^\[\]\n]{0,1000}+\]" + _TARGET)
_AT_ONE_TIME = 20_000
"""Characters of a line; a link that is cut there stays."""
_LINK = re.compile(r"\[([^\[\]\n]{0,1000}+)\]" + _TARGET)


class JinaPages:
    """Implements `ramify.tools.pages.PageSource` over a service that fetches for us."""

    def __init__(
        self, client: HttpClient, *, key: str | None = None, base_url: str = JINA_URL, max_chars: int = 50_000
    ) -> None:
        """Open no connection yet.

        Args:
            client: For this service alone. Pages that it cannot read count as its failures, so let it fail often
                before it counts as down.
            key: Of the service, or None.
            base_url: Of the service, or of one of your own that runs the same program.
            max_chars: Of a page's text; what comes after is left out.
        """
        self._client, self._key = client, key
        self._base_url = base_url.rstrip("/")
        self._max_chars = max_chars

    @property
    def name(self) -> str:
        """As in the recipe."""
        return "jina"

    @property
    def identity(self) -> Mapping[str, Json]:
        """All that a page's text depends on beside its address."""
        return {"base_url": self._base_url, "max_chars": self._max_chars}

    async def read(self, url: str) -> Document:
        """Have a page read.

        Raises:
            RequestFailedError: It cannot be had.
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
        # Links are taken out of it, so that more than is shown must be looked at; others wait for the event loop meanwhile.
        text = await asyncio.to_thread(_without_links, content[: 10 * self._max_chars])
        return Document(
            _storable(title)[:300] if isinstance(title, str) else "", _storable(text)[: self._max_chars]
        )

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""
        await self._client.close()


def _without_links(markdown: str) -> str:
    """Line by line, since no link goes over a line's end, and while a thread is in one long search no other goes on."""
    return "\n".join(
        "".join(
            _LINK.sub(r"\1", _IMAGE.sub("", line[at : at + _AT_ONE_TIME]))
            for at in range(0, len(line), _AT_ONE_TIME)
        )
        for line in markdown.split("\n")
    )


def _storable(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can spell and no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
