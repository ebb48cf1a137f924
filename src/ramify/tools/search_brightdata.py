"""Search provider `brightdata`: Bing's results through Bright Data, as in ARPO's search tool (arXiv 2507.19849)."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from ramify.core.protocols import Hit, Json
from ramify.net.client import HttpClient
from ramify.tools.web_hits import ResultFields, read_hits

KEY_VARIABLE = "BRIGHTDATA_API_KEY"
ADDRESS = "https://api.brightdata.com"
_BING = "https://www.bing.com/search"
_RESULTS_OF_A_PAGE = 10
_FIELDS = ResultFields("organic", "description", "link", besides=("general", "input"))
_CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")


class BrightDataSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a client, which it closes.

    Args:
        client: The client for the service; it redacts the key from messages.
        key: The key, sent as a bearer token.
        zone: The account's zone; it must be a zone for search results.
        country: Bing's `cc`.
        market: Bing's `mkt` and `setLang`; None: zh-CN for a query with Chinese characters, else en-US.
        base_url: Address of the service.
    """

    name = "brightdata"

    def __init__(
        self,
        client: HttpClient,
        key: str,
        *,
        zone: str,
        country: str = "us",
        market: str | None = None,
        base_url: str = ADDRESS,
    ) -> None:
        self._client, self._key, self._zone = client, key, zone
        self._country, self._market = country, market
        self._address = f"{base_url.rstrip('/')}/request"
        self.identity: Mapping[str, Json] = {
            "address": self._address,
            "engine": "bing",
            "country": country,
            "market": market,
        }

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:  # noqa: ARG002 - has none
        """At most `top_k` organic results."""
        body: dict[str, Json] = {"zone": self._zone, "url": self._page(query, top_k), "format": "raw"}
        headers = {"Authorization": f"Bearer {self._key}"}
        answer = await self._client.post_json(self._address, body, headers=headers)
        return read_hits(answer, _FIELDS, top_k)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _page(self, query: str, top_k: int) -> str:
        market = self._market or ("zh-CN" if _CHINESE.search(query) else "en-US")
        asked = {"q": query, "mkt": market, "setLang": market, "cc": self._country, "brd_json": "1"}
        if top_k > _RESULTS_OF_A_PAGE:
            asked["count"] = str(top_k)
        return f"{_BING}?{urlencode(asked)}"
