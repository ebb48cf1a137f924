"""Schemas of the tools that the policy can call, of the services behind them, and of the sandbox."""

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from ramify.config.schema_parts import Section, is_changed
from ramify.core.config import (
    Attempts,
    Days,
    Level,
    PositiveInt,
    Rate,
    Reserved,
    Seconds,
    Temperature,
    Threads,
    Tokens,
    UserPath,
)

Name = Annotated[str, Field(min_length=1, max_length=200)]
_VARIABLE = re.compile(r"(?=.*(KEY|TOKEN|SECRET|PASSWORD))[A-Z][A-Z0-9_]{0,63}")


def _variable(name: Any) -> str:  # noqa: ANN401 - any TOML value
    """The name of an environment variable; anything that may be a key is refused and not shown.

    Raises:
        ValueError: It may be a key.
    """
    if isinstance(name, str) and _VARIABLE.fullmatch(name):
        return name
    raise ValueError(
        "expected the name of an environment variable, in capitals, with KEY, TOKEN, SECRET or PASSWORD in it, such as "
        "JUDGE_API_KEY; the given value is not shown, because it may be the key itself"
    )


Variable = Annotated[str, BeforeValidator(_variable)]
"""Name of an environment variable with a key; keys come from nowhere else."""


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname
        secret = parts.username or parts.password or parts.query or parts.fragment
        _ = parts.port
    except ValueError:
        named = secret = None
    if not named:
        raise ValueError("expected an address such as http://127.0.0.1:8000")
    if secret:
        raise ValueError("expected an address without a key; keys come from the environment")
    return url


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise ValueError(f"expected a network such as 10.1.0.0/16 ({error})") from None
    return text


ServiceUrl = Annotated[str, AfterValidator(_address)]
Network = Annotated[str, AfterValidator(_network)]


class HttpSection(Section):
    """How to call a service: time per attempt, attempts per request, rate limits, and the run's budget of attempts."""

    timeout_seconds: Seconds = 20.0
    attempts: Attempts = 3
    requests_per_second: Rate | None = None
    in_flight: Reserved = 16
    max_requests: PositiveInt | None = None


def _refuse_late_hedge(hedge_seconds: float | None, timeout_seconds: float) -> None:
    """Refuse a hedge (a second, concurrent call) that would start only after the first call's timeout.

    Raises:
        ValueError: The hedge would never start.
    """
    if hedge_seconds is not None and hedge_seconds >= timeout_seconds:
        raise ValueError(f"hedge_seconds: expected less than timeout_seconds = {timeout_seconds:g}")


class _SearchSection(Section):
    """Settings of all providers. `page_labels` writes "Page i: " before each passage, as the papers' tool does."""

    top_k: Reserved = 10
    snippet_chars: PositiveInt = 1000
    page_labels: bool = True
    timeout_seconds: Seconds = 60.0
    hedge_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _hedges_in_time(self) -> "_SearchSection":
        _refuse_late_hedge(self.hedge_seconds, self.timeout_seconds)
        return self


class LocalSearchSection(_SearchSection):
    """Passages of a JSONL file, ranked by BM25; `index` is the folder for the index of a large file."""

    provider: Literal["local"] = "local"
    corpus: UserPath
    index: UserPath | None = None


class DenseSearchSection(_SearchSection):
    """Passages of a JSONL file, ranked by the dot product of embeddings; `model` is a model for sentence-transformers.

    Set the prefixes that the model was trained with (E5: "query: " and "passage: "). `index` is a folder for vectors.
    """

    provider: Literal["dense"]
    corpus: UserPath
    model: Name
    query_prefix: str = ""
    passage_prefix: str = ""
    index: UserPath | None = None


class RetrieverSearchSection(_SearchSection):
    """A retriever service with the API of Tool-Star and FlashRAG, or that of Search-R1.

    Up to `batch_size` concurrent queries are sent in one request.
    """

    provider: Literal["retriever"]
    url: ServiceUrl
    style: Literal["flashrag", "search_r1"] = "flashrag"
    batch_size: Reserved = 1
    http: HttpSection = HttpSection()


class BrightDataSearchSection(_SearchSection):
    """Bing through Bright Data; the key is in BRIGHTDATA_API_KEY."""

    provider: Literal["brightdata"]
    zone: Name
    country: Name = "us"
    market: Name | None = None
    url: ServiceUrl = "https://api.brightdata.com"
    http: HttpSection = HttpSection()


class SerperSearchSection(_SearchSection):
    """Google through Serper; the key is in SERPER_API_KEY."""

    provider: Literal["serper"]
    country: Name = "us"
    language: Name = "en"
    url: ServiceUrl = "https://google.serper.dev"
    http: HttpSection = HttpSection()


class SearxngSearchSection(_SearchSection):
    """A SearXNG instance; `engines` and `categories` are comma-separated lists, empty for the instance's defaults."""

    provider: Literal["searxng"]
    url: ServiceUrl
    language: Name = "en"
    engines: str = ""
    categories: str = ""
    http: HttpSection = HttpSection()


def _provider(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    return value.get("provider", "local") if isinstance(value, dict) else getattr(value, "provider", "local")


SearchSection = Annotated[
    Annotated[LocalSearchSection, Tag("local")]
    | Annotated[DenseSearchSection, Tag("dense")]
    | Annotated[RetrieverSearchSection, Tag("retriever")]
    | Annotated[BrightDataSearchSection, Tag("brightdata")]
    | Annotated[SerperSearchSection, Tag("serper")]
    | Annotated[SearxngSearchSection, Tag("searxng")],
    Discriminator(_provider),
]


class ChatSection(Section):
    """A model at an OpenAI-compatible endpoint; `key_variable` is the environment variable with its key, if any."""

    url: ServiceUrl
    model: Name
    key_variable: Variable | None = None
    max_tokens: Tokens = 4096
    temperature: Temperature = 0.6
    http: HttpSection = HttpSection(timeout_seconds=60.0)


class BrowserSection(Section):
    """Opens the pages of search results: returns the passage near each snippet, or a `summary` model's notes on them.

    `source`: fetch pages directly (guarded), or through the Jina reader (with the key in JINA_API_KEY, if set).
    `networks` are non-public networks that may be fetched from. `open_page` adds a separate tool that opens an address.
    """

    source: Literal["guarded", "jina"] = "guarded"
    open_page: bool = False
    page_seconds: Seconds = 20.0
    pages_seconds: Seconds = 30.0
    max_bytes: PositiveInt = 10_000_000
    max_chars: PositiveInt = 50_000
    context_chars: PositiveInt = 3000
    head_chars: PositiveInt = 6000
    in_flight: Reserved = 64
    networks: tuple[Network, ...] = ()
    summary: ChatSection | None = None
    summary_seconds: Seconds = 60.0

    @model_validator(mode="after")
    def _acting(self) -> "BrowserSection":
        idle = {"networks": self.source == "jina", "max_bytes": self.source == "jina"}
        idle |= {"summary_seconds": self.summary is None}
        for key, is_idle in idle.items():
            if is_idle and is_changed(self, key):
                other = (
                    'source = "guarded"' if self.source == "jina" and key != "summary_seconds" else "summary"
                )
                raise ValueError(f"{key}: acts with {other} only; leave it out")
        return self


class PythonSection(Section):
    """The Python tool; output is cut to `max_output_chars`; `stateful` keeps variables within a trajectory."""

    timeout_seconds: Seconds = 120.0
    max_output_chars: PositiveInt = 4000
    stateful: bool = False


class OwnToolSection(Section):
    """A function or class of the user's own; arguments set in `args` are hidden from the model.

    `in_prompt` adds its description to every prompt; otherwise the problems' own messages must describe it.
    """

    path: UserPath
    function: Name
    args: dict[str, Any] = Field(default_factory=dict)
    name: Name | None = None
    timeout_seconds: Seconds = 60.0
    hedge_seconds: Seconds | None = None
    in_prompt: bool = True
    max_threads: Threads = 32

    @model_validator(mode="after")
    def _hedges_in_time(self) -> "OwnToolSection":
        _refuse_late_hedge(self.hedge_seconds, self.timeout_seconds)
        return self


class CacheSection(Section):
    """A cache for answers of search, pages and summaries, in a file that runs may share.

    With `mode` record, replay or replay_or_fail, `path` is a cassette, which records or replays answers.
    """

    path: UserPath
    mode: Literal["cache", "record", "replay", "replay_or_fail"] = "cache"
    days: Days = 30.0
    empty_days: Days = 1.0

    @model_validator(mode="after")
    def _acting(self) -> "CacheSection":
        for key in ("days", "empty_days"):
            if self.mode != "cache" and is_changed(self, key):
                raise ValueError(f'{key}: acts with mode = "cache" only; answers in a cassette do not expire')
        return self


class ToolsSection(Section):
    """The tools that the policy can call; an absent table is an absent tool.

    SFT and DPO show them in prompts as RL does, and call none.
    """

    search: SearchSection | None = None
    browser: BrowserSection | None = None
    python: PythonSection | None = None
    own: tuple[OwnToolSection, ...] = ()
    cache: CacheSection | None = None

    @model_validator(mode="after")
    def _acting(self) -> "ToolsSection":
        if self.browser is not None and (
            self.search is None or self.search.provider in ("local", "dense", "retriever")
        ):
            raise ValueError(
                "browser: reads the pages that a web search finds; expected such a [tools.search]"
            )
        if self.cache is not None and self.search is None:
            raise ValueError("cache: there is no search whose answers could be cached; leave it out")
        idle = [("hedge_seconds", "cache"), ("hedge_seconds", "browser")]
        idle += [("snippet_chars", "browser"), ("page_labels", "browser")]
        for key, other in idle:
            if self.search is not None and getattr(self, other) is not None and is_changed(self.search, key):
                raise ValueError(f"search.{key}: acts without {other} only; leave it out")
        return self


def refuse_idle_sandbox(tools: ToolsSection, sandbox: "SandboxSection") -> None:
    """Refuse settings of the sandbox without the Python tool, the only one that uses it.

    Raises:
        ValueError: The recipe configures a sandbox but no Python tool.
    """
    has_tools = tools.search is not None or bool(tools.own)
    if has_tools and tools.python is None and sandbox != SandboxSection():
        raise ValueError(
            "sandbox: only [tools.python] uses it, and the recipe has no such tool; leave it out"
        )


class SandboxSection(Section):
    """Where the model's programs run: on this machine at `min_level` or higher (docs/sandbox.md), or at a service.

    `level` is the level that the service's operator promises; ramify cannot check it.
    """

    min_level: Level = 2
    url: ServiceUrl | None = None
    level: Level | None = None
    key_variable: Variable | None = None

    @model_validator(mode="after")
    def _acting(self) -> "SandboxSection":
        for key in ("level", "key_variable"):
            if self.url is None and getattr(self, key) is not None:
                raise ValueError(f"{key}: acts with url only; leave it out")
        if self.url is not None and (self.level or 0) < self.min_level:
            raise ValueError(
                f"level: expected what the service promises, at least min_level = {self.min_level}"
            )
        return self
