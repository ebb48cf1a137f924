"""Settings of the tools, apart from their code: checking a recipe need not import it."""

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ramify.core.config import (
    Config,
    Days,
    InputFile,
    Length,
    Name,
    Network,
    PositiveFraction,
    PositiveInt,
    Reserved,
    Seconds,
    ServiceUrl,
    Switch,
    Temperature,
    Threads,
    Tokens,
    UserPath,
    Variable,
)
from ramify.net.configs import ChatConfig, HttpConfig

Reply = Annotated[str, Length(1, 2000)]
"""A text that the policy reads in place of a tool's answer."""


def refuse_idle_reply(max_calls: int | None, limit_reply: str | None) -> None:
    """Refuse a reply to calls beyond a limit where there is no limit (ValueError)."""
    if max_calls is None and limit_reply is not None:
        raise ValueError("limit_reply: has no effect without max_calls. Remove it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallConfig(Config):
    """Time for a call; one that has not answered after `hedge_seconds` is made a second time.

    After `max_calls` calls on a trajectory the tool is not run any more, and the policy reads that, or `limit_reply`; it
    can still answer. None: only the trajectory's own limit holds.
    """

    max_calls: PositiveInt | None = None
    limit_reply: Reply | None = None
    timeout_seconds: Seconds = 60.0
    hedge_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        refuse_idle_reply(self.max_calls, self.limit_reply)
        if self.hedge_seconds is not None and self.hedge_seconds >= self.timeout_seconds:
            raise ValueError(f"hedge_seconds: expected less than timeout_seconds = {self.timeout_seconds:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig(CallConfig):
    """Settings of the search tool with any provider.

    An answer has at most `top_k` distinct texts, one per line, each cut to `snippet_chars` characters. `page_labels`
    writes "Page i: " before each, as the papers' tool does (arXiv 2507.19849, released code). With `repeat_reply` a query
    that the trajectory has searched for before is answered with this text and not sent; it does not count toward `max_calls`.
    """

    repeat_reply: Reply | None = None
    top_k: Reserved = 10
    snippet_chars: PositiveInt = 1000
    page_labels: Switch = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSearchConfig(SearchConfig):
    """Passages of a JSONL file, ranked by BM25; `index` is the folder for the index of a large file."""

    provider: Literal["local"] = "local"
    corpus: InputFile
    index: UserPath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSearchConfig(SearchConfig):
    """Passages of a JSONL file, ranked by the dot product of embeddings; `model` is a model for sentence-transformers.

    Set the prefixes that the model was trained with (E5: "query: " and "passage: "). `index` is a folder for vectors.
    """

    provider: Literal["dense"] = "dense"
    corpus: InputFile
    model: Name
    query_prefix: str = ""
    passage_prefix: str = ""
    index: UserPath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverSearchConfig(SearchConfig):
    """A retriever service with the API of Tool-Star and FlashRAG, or that of Search-R1; `url` is without the route.

    flashrag: POST /search and /batch_search {query, top_n, return_score}; search_r1: POST /retrieve {queries, topk,
    return_scores}. Up to `batch_size` queries within 10 ms are sent in one request.
    """

    provider: Literal["retriever"] = "retriever"
    url: ServiceUrl
    style: Literal["flashrag", "search_r1"] = "flashrag"
    batch_size: Reserved = 1
    http: HttpConfig = HttpConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrightDataSearchConfig(SearchConfig):
    """Bing through Bright Data; the key is in BRIGHTDATA_API_KEY.

    `zone` must be the account's zone for search results. `country` is Bing's `cc`, `market` its `mkt`, `language` its
    `setLang`; without a market: zh-CN for a query with Chinese characters, else en-US; without a language: the market.
    """

    provider: Literal["brightdata"] = "brightdata"
    zone: Name
    country: Name = "us"
    market: Name | None = None
    language: Name | None = None
    url: ServiceUrl = "https://api.brightdata.com"
    http: HttpConfig = HttpConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SerperSearchConfig(SearchConfig):
    """Google through Serper; the key is in SERPER_API_KEY. `country` and `language` are Google's `gl` and `hl`."""

    provider: Literal["serper"] = "serper"
    country: Name = "us"
    language: Name = "en"
    url: ServiceUrl = "https://google.serper.dev"
    http: HttpConfig = HttpConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearxngSearchConfig(SearchConfig):
    """A SearXNG instance; `engines` and `categories` are comma-separated lists, empty for the instance's defaults."""

    provider: Literal["searxng"] = "searxng"
    url: ServiceUrl
    language: Name = "en"
    engines: str = ""
    categories: str = ""
    http: HttpConfig = HttpConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryConfig(ChatConfig):
    """The model that collects facts from pages; `max_tokens` limits its reply, with its thinking.

    `top_p` is sent if it is below 1.
    """

    max_tokens: Tokens = 4096
    temperature: Temperature = 0.6
    top_p: PositiveFraction = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserConfig(Config):
    """Opens the pages of search results: returns the passage near each snippet, or a `summary` model's notes on them.

    Attributes:
        source: Fetch pages directly (guarded), or through the Jina reader (with the key in JINA_API_KEY, if set).
        url: Address of the reader, such as one of your own; None: https://r.jina.ai.
        open_page: Whether there is a separate tool that opens an address.
        page_seconds: Time limit of one page, from the request to the last byte, with redirects and a second attempt.
        pages_seconds: Time limit for reading all pages of an answer; slower pages are left out.
        max_bytes: Most bytes of a decompressed page; a larger page is refused.
        max_chars: Most characters of a page's text; the rest is cut.
        context_chars: Characters on either side of the sentence nearest to the snippet.
        head_chars: Characters of the page's beginning that are used if no sentence is near enough.
        in_flight: Most pages fetched at the same time.
        networks: Networks that may be fetched although they are not public, such as "10.1.0.0/16" of an intranet.
        summary: The model that sums the passages up. None: the policy sees the passages themselves.
        summary_seconds: Time limit for the summary.
    """

    source: Literal["guarded", "jina"] = "guarded"
    url: ServiceUrl | None = None
    open_page: Switch = False
    page_seconds: Seconds = 20.0
    pages_seconds: Seconds = 30.0
    max_bytes: PositiveInt = 10_000_000
    max_chars: PositiveInt = 50_000
    context_chars: PositiveInt = 3000
    head_chars: PositiveInt = 6000
    in_flight: Reserved = 64
    networks: tuple[Network, ...] = ()
    summary: SummaryConfig | None = None
    summary_seconds: Seconds = 60.0

    def __post_init__(self) -> None:
        for key, other, acts in (
            ("networks", 'source = "guarded"', self.source == "guarded"),
            ("max_bytes", 'source = "guarded"', self.source == "guarded"),
            ("url", 'source = "jina"', self.source == "jina"),
            ("summary_seconds", "summary", self.summary is not None),
        ):
            if not acts and self.is_changed(key):
                raise ValueError(f"{key}: has no effect without {other}. Remove it.")


def _refuse_statements(path: Path) -> None:
    """Refuse a statement as the path of a file (ValueError)."""
    try:
        statements = ast.parse(str(path)).body
    except (SyntaxError, ValueError, RecursionError):
        return
    # A path such as lib/names.py parses as an expression.
    if any(not isinstance(each, ast.Expr) or isinstance(each.value, ast.Call) for each in statements):
        raise ValueError(
            f"preamble: expected a file or a list of statements, got a text. Write preamble = [{json.dumps(str(path))}]."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonConfig(Config):
    """The Python tool: a program's wall time, and the length of a result without its notes.

    `stateful` keeps variables within a trajectory. `max_calls` and `limit_reply` are as in `CallConfig`.

    Attributes:
        preamble: Statements, or a file of them, with whose names each program starts.
        packages: Distributions beside ramify that programs can import besides numpy, mpmath and sympy.
        environment: Folder of a virtual or conda environment whose packages programs can import instead.
    """

    max_calls: PositiveInt | None = None
    limit_reply: Reply | None = None
    timeout_seconds: Seconds = 120.0
    max_output_chars: PositiveInt = 4000
    stateful: Switch = False
    preamble: InputFile | tuple[str, ...] | None = None
    packages: tuple[Name, ...] | None = None
    environment: UserPath | None = None

    def __post_init__(self) -> None:
        if self.packages is not None and self.environment is not None:
            raise ValueError(
                "packages: has no effect with environment, which has packages of its own. Remove it."
            )
        if isinstance(self.preamble, Path):
            _refuse_statements(self.preamble)
        refuse_idle_reply(self.max_calls, self.limit_reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnToolConfig(CallConfig):
    """A function or class of the user's own; arguments set in `args` are hidden from the model.

    `in_prompt` adds its description to every prompt; otherwise the problems' own messages must describe it.
    """

    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)
    name: Name | None = None
    in_prompt: Switch = True
    max_threads: Threads = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnvironmentConfig(Config):
    """A class of the user's own, of which each trajectory has an object; `args` are for its `__init__`.

    `step`, if it has one, replies to at most `max_steps` turns of a trajectory. `in_prompt` adds the descriptions of its
    methods to every prompt; otherwise the problems' own messages must describe them.
    """

    type: Literal["own"] = "own"
    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)
    max_steps: PositiveInt = 10
    in_prompt: Switch = True
    timeout_seconds: Seconds = 60.0
    max_threads: Threads = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig(Config):
    """An MCP server as the environment: a program that each trajectory starts for itself, or a service at an address.

    Attributes:
        type: Which environment this is.
        command: Program and arguments of a server that speaks over standard input and output.
        url: Address of a server that speaks streamable HTTP, such as http://127.0.0.1:8000/mcp.
        timeout_seconds: Deadline of a call, and of opening and closing a session.
        variables: Environment variables with keys that the program gets; of the others it gets HOME, PATH and the like.
        key_variable: The environment variable with the key that requests to `url` carry, if any.
    """

    type: Literal["mcp"] = "mcp"
    command: tuple[str, ...] = ()
    url: ServiceUrl | None = None
    timeout_seconds: Seconds = 60.0
    variables: tuple[Variable, ...] = ()
    key_variable: Variable | None = None

    def __post_init__(self) -> None:
        if bool(self.command) == (self.url is not None):
            raise ValueError('expected one of command, such as ["python", "server.py"], and url')
        if any("\0" in part for part in self.command):
            raise ValueError("command: expected texts without null characters")
        for key, other, acts in (
            ("variables", "command", self.url is None),
            ("key_variable", "url", self.url is not None),
        ):
            if not acts and self.is_changed(key):
                raise ValueError(f"{key}: has no effect without {other}. Remove it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvConfig(Config):
    """An OpenEnv server as the environment; the policy acts through one tool, whose name is `tool`.

    The server must run, and have room for a session for each trajectory that is written at the same time.

    Attributes:
        url: The server's address, without a route.
        tool: Name of the tool.
        timeout_seconds: Time for an action, and for opening and closing a session.
        instructions: Takes the place of the server's own description of its action in prompts.
    """

    type: Literal["openenv"] = "openenv"
    url: ServiceUrl
    tool: Name = "act"
    timeout_seconds: Seconds = 60.0
    instructions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig(Config):
    """A cache for answers of search, pages and summaries, in a file that runs may share.

    With `mode` record, replay or replay_or_fail it is a cassette, which records or replays answers.
    """

    path: UserPath
    mode: Literal["cache", "record", "replay", "replay_or_fail"] = "cache"
    days: Days = 30.0
    empty_days: Days = 1.0

    def __post_init__(self) -> None:
        for key in ("days", "empty_days"):
            if self.mode != "cache" and self.is_changed(key):
                raise ValueError(f'{key}: has no effect without mode = "cache". Remove it.')
