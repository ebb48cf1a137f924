"""Search provider `serper`: Google's results through serper.dev."""

from collections.abc import Mapping, Sequence

from ramify.core.protocols import Hit, Json
from ramify.net.client import HttpClient
from ramify.tools.web_hits import ResultFields, read_hits

KEY_VARIABLE = "SERPER_API_KEY"
ADDRESS = "https://google.serper.dev"
_FIELDS = ResultFields("organic", "snippet", "link", besides=("searchParameters",))


class SerperSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes.

    `key` is sent in the header X-API-KEY; `country` and `language` are Google's `gl` and `hl`.
    """

    name = "serper"

    def __init__(
        self,
        client: HttpClient,
        key: str,
        *,
        country: str = "us",
        language: str = "en",
        base_url: str = ADDRESS,
    ) -> None:
        self._client, self._key = client, key
        self._address = f"{base_url.rstrip('/')}/search"
        self._place = {"gl": country, "hl": language}
        self.identity: Mapping[str, Json] = {"address": self._address, **self._place}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:  # noqa: ARG002 - has none
        """At most `top_k` organic results."""
        body: dict[str, Json] = {"q": query, "num": top_k, **self._place}
        answer = await self._client.post_json(self._address, body, headers={"X-API-KEY": self._key})
        return read_hits(answer, _FIELDS, top_k)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
