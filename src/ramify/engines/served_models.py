"""What servers with OpenAI's API say about themselves: the model that they serve, and which kind of server they are.

GET {base_url}/models lists `data[].{id, owned_by}`; vLLM and SGLang name themselves in `owned_by`. Both read a model's
generation_config.json, whose values they use for what a request leaves out (vLLM's flag --generation-config). They take
top_k, min_p and repetition_penalty with each request, which OpenAI's API does not have.
"""

from collections.abc import Mapping

from ramify.core.errors import ConfigError
from ramify.core.protocols import Json
from ramify.core.records import TokenFilters
from ramify.net.failures import RequestFailedError
from ramify.net.servers import Fetch
from ramify.net.wire import without_query

_TAKE_FILTERS = ("vllm", "sglang")
_MAX_NAMES = 5
"""Models that a message lists."""


def filter_fields(filters: TokenFilters, all_tokens: int = 0) -> dict[str, Json]:
    """Return the fields of a request to vLLM or SGLang; `all_tokens` is their `top_k` for no limit (SGLang's: -1)."""
    return {
        "top_p": filters.top_p,
        "top_k": filters.top_k or all_tokens,
        "min_p": filters.min_p,
        "repetition_penalty": filters.repetition_penalty,
    }


class ServedModel:
    """Implements `ramify.net.servers.ServerCheck`: refuses servers of another model, and remembers of which kind each is."""

    def __init__(self, setting: str, model: str, headers: Mapping[str, str]) -> None:
        """Ask nothing yet.

        Args:
            setting: The recipe's key of the model's name, for messages.
            model: The name.
            headers: With the service's key.
        """
        self._setting, self._model, self._headers = setting, model, headers
        self._kinds: dict[str, str] = {}

    @property
    def takes_filters(self) -> bool:
        """True if every server that answered is known to take all filters with a request."""
        return bool(self._kinds) and all(kind in _TAKE_FILTERS for kind in self._kinds.values())

    async def __call__(self, url: str, fetch: Fetch) -> None:
        """Look at a server. One that lists no models is taken as it is.

        Raises:
            ConfigError: It serves another model.
            RequestFailedError: It does not answer.
        """
        self._kinds[url] = ""
        try:
            read = (await fetch(f"{url}/models", self._headers)).json()
        except RequestFailedError as failed:
            if failed.is_outage:
                del self._kinds[url]
                raise
            return
        listed = read.get("data") if isinstance(read, Mapping) else None
        entries = (
            [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
        )
        names = [name for entry in entries if isinstance(name := entry.get("id"), str)]
        kinds = {str(entry.get("owned_by")) for entry in entries}
        self._kinds[url] = next((kind for kind in _TAKE_FILTERS if kind in kinds), "")
        # Hosts of many models take names that they do not list.
        if names and self._model not in names and (self._kinds[url] or len(names) == 1):
            served = ", ".join(map(repr, names[:_MAX_NAMES]))
            raise ConfigError(
                f"{self._setting}: {without_query(url)} serves {served}, not {self._model!r}. Use the name that it has "
                "there, or another server."
            )


def defaults_note(take_filters: bool, filters: TokenFilters) -> str:
    """Return what holds for the fields that a recipe does not set, for the run's notes; "" if it sets all."""
    unset = [
        name for name, value in filter_fields(filters).items() if value == filter_fields(TokenFilters())[name]
    ]
    if not unset:
        return ""
    if take_filters:
        return (
            "engine 'openai': every request names top_p, top_k, min_p and repetition_penalty, so no default of the "
            "servers or of the model's generation_config.json acts"
        )
    return (
        f"engine 'openai': requests leave out {', '.join(unset)}, so the service's own defaults hold for them, which it does "
        "not tell"
    )
