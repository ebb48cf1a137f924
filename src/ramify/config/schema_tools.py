"""Schemas of the tools that the policy can call, of the services behind them, and of the sandbox."""

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from ramify.config.bounds import (
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
)
from ramify.config.schema_parts import Section, UserPath, is_changed

Name = Annotated[str, Field(min_length=1, max_length=200)]
_VARIABLE = re.compile(r"(?=.*(KEY|TOKEN|SECRET|PASSWORD))[A-Z][A-Z0-9_]{0,63}")


def _variable(name: Any) -> str:  # noqa: ANN401 - any TOML value
    """The name of a variable; a key that stands in its place is refused, and shown to nobody.

    Raises:
        ValueError: It may be a key.
    """
    if isinstance(name, str) and _VARIABLE.fullmatch(name):
        return name
    raise ValueError(
        "expected the name of an environment variable, in capitals, with KEY, TOKEN, SECRET or PASSWORD in it, such as "
        "JUDGE_API_KEY; what was given is not shown, it may be the key itself"
    )


Variable = Annotated[str, BeforeValidator(_variable)]
"""Of the environment: the only place that keys come from."""


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
    """How a service is asked: an attempt's time, attempts of a request, pace, and the attempts that the run may pay for."""

    timeout_seconds: Seconds = 20.0
    attempts: Attempts = 3
    requests_per_second: Rate | None = None
    in_flight: Reserved = 16
    max_requests: PositiveInt | None = None


def _refuse_late_hedge(hedge_seconds: float | None, timeout_seconds: float) -> None:
    """A second call is made before the first one's time is over, or never.

    Raises:
        ValueError: It would never be made.
    """
    if hedge_seconds is not None and hedge_seconds >= timeout_seconds:
        raise ValueError(f"hedge_seconds: expected less than timeout_seconds = {timeout_seconds:g}")


class _SearchSection(Section):
    """What all providers share. `page_labels` writes "Page i: " before each passage, as the papers' tool does."""

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
    """Passages of a JSONL file, ranked by BM25; `index` is the folder that keeps the index of a large one."""

    provider: Literal["local"] = "local"
    corpus: UserPath
    index: UserPath | None = None


class DenseSearchSection(_SearchSection):
    """Passages of a JSONL file by the dot product of embeddings; `model` is one of sentence-transformers.

    The prefixes are what the model was trained with (E5: "query: " and "passage: "); `index` keeps the vectors.
    """

    provider: Literal["dense"]
    corpus: UserPath
    model: Name
    query_prefix: str = ""
    passage_prefix: str = ""
    index: UserPath | None = None


class RetrieverSearchSection(_SearchSection):
    """A retriever service: the routes of Tool-Star and FlashRAG, or that of Search-R1.

    Up to `batch_size` queries that come at one time go in one request.
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
    """A SearXNG instance; `engines` and `categories` are lists with commas, empty for its own choice."""

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
    """A model behind an OpenAI-compatible endpoint; `key_variable` names the variable that holds its key, if it wants one."""

    url: ServiceUrl
    model: Name
    key_variable: Variable | None = None
    max_tokens: Tokens = 4096
    temperature: Temperature = 0.6
    http: HttpSection = HttpSection(timeout_seconds=60.0)


class BrowserSection(Section):
    """Search results are read as pages: the passage of each near its snippet, or what a `summary` model says of them.

    `source` fetches them itself, or asks the Jina reader (key in JINA_API_KEY, if there is one). `networks` may be
    fetched although they are not public. `open_page` is a tool of its own that opens an address.
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
    """The Python tool; `max_output_chars` of its output reach the model; `stateful` keeps variables within a trajectory."""

    timeout_seconds: Seconds = 120.0
    max_output_chars: PositiveInt = 4000
    stateful: bool = False


class OwnToolSection(Section):
    """A function or class of the user's own; what `args` gives, the model cannot.

    `in_prompt` describes it in every prompt; otherwise the problems' own messages do.
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


class ExampleToolsSection(Section):
    """The user's own tools as the prompts of an SFT or DPO run describe them; nothing is called.

    Search and Python need no table here: no prompt describes them.
    """

    own: tuple[OwnToolSection, ...] = ()


class CacheSection(Section):
    """Answers of search, pages and summaries, remembered in a file that runs may share.

    `mode` record, replay and replay_or_fail write and read a cassette at `path` in place of a cache.
    """

    path: UserPath
    mode: Literal["cache", "record", "replay", "replay_or_fail"] = "cache"
    days: Days = 30.0
    empty_days: Days = 1.0

    @model_validator(mode="after")
    def _acting(self) -> "CacheSection":
        for key in ("days", "empty_days"):
            if self.mode != "cache" and is_changed(self, key):
                raise ValueError(f'{key}: acts with mode = "cache" only; nothing in a cassette grows old')
        return self


class ToolsSection(Section):
    """The tools that the policy can call; an absent table is an absent tool."""

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
            raise ValueError("cache: there is no search whose answers could be remembered; leave it out")
        idle = [("hedge_seconds", "cache"), ("hedge_seconds", "browser")]
        idle += [("snippet_chars", "browser"), ("page_labels", "browser")]
        for key, other in idle:
            if self.search is not None and getattr(self, other) is not None and is_changed(self.search, key):
                raise ValueError(f"search.{key}: acts without {other} only; leave it out")
        return self


def refuse_idle_sandbox(tools: ToolsSection, sandbox: "SandboxSection") -> None:
    """Only the Python tool runs programs.

    Raises:
        ValueError: A sandbox is described and there is no such tool.
    """
    has_tools = tools.search is not None or bool(tools.own)
    if has_tools and tools.python is None and sandbox != SandboxSection():
        raise ValueError(
            "sandbox: only [tools.python] runs programs in it, and it is not there; leave it out"
        )


class SandboxSection(Section):
    """Where programs of the model run: on this machine at `min_level` at least (docs/sandbox.md), or at a service.

    `level` is what whoever runs the service promises; a service cannot be tried out from here.
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
