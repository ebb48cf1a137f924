"""Search provider `searxng`: a SearXNG instance of your own."""

from collections.abc import Mapping, Sequence

from ramify.core.errors import ServiceDownError
from ramify.core.protocols import Hit, Json
from ramify.net.client import Answer, HttpClient
from ramify.tools.web_hits import ResultFields, read_hits

_FIELDS = ResultFields("results", "content", "url")


class SearxngSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes.

    `base_url` is the address of the instance. `engines` and `categories` are comma-separated lists as in SearXNG's API;
    "" leaves the choice to the instance.
    """

    name = "searxng"

    def __init__(
        self,
        client: HttpClient,
        *,
        base_url: str,
        language: str = "en",
        engines: str = "",
        categories: str = "",
    ) -> None:
        self._client = client
        self._address = f"{base_url.rstrip('/')}/search"
        asked = {"language": language, "engines": engines, "categories": categories}
        self._asked = {name: value for name, value in asked.items() if value}
        self.identity: Mapping[str, Json] = {"address": self._address, **self._asked}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:  # noqa: ARG002 - has none
        """The first `top_k` results; SearXNG always returns one page of results, so there may be fewer.

        Raises:
            RequestFailedError: The request failed, or found nothing because search engines did not answer.
            ServiceDownError: The service is down, or does not serve JSON.
        """
        try:
            answer = await self._client.get(
                self._address, params={"q": query, "format": "json", **self._asked}
            )
        except ServiceDownError as error:
            if "HTTP 403" not in str(error):
                raise
            raise ServiceDownError(
                f"{error}; SearXNG needs json in search.formats of its settings.yml"
            ) from None
        hits = read_hits(answer, _FIELDS, top_k)
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
