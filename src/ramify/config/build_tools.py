"""Builds the tools of a checked recipe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ramify.config.build_services import build_provider, chat_model, http_client, page_source
from ramify.config.schema_tools import (
    BrowserSection,
    ChatSection,
    HttpSection,
    OwnToolSection,
    PythonSection,
    SandboxSection,
    SearchSection,
    ToolsSection,
)
from ramify.core.closing import Closable, close_all
from ramify.core.errors import ConfigError
from ramify.core.messages import ToolSpec
from ramify.core.protocols import Cache, ChatModel, Json, Sandbox, SearchProvider, Tool

if TYPE_CHECKING:
    from ramify.tools.functions import LoadedTool
    from ramify.tools.pages import PageSource
    from ramify.tools.search import SearchTool


_OURS = ("search", "open_page", "python")
"""ramify's tools in the order in which prompts list them."""

_SERVICE_SECONDS = 5.0
"""Time that a sandbox service may take in addition to the program's own time."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools by name, the resources that they use, and notes about the user's own tools.

    `identities` holds for each tool what its answers depend on besides the recipe: corpus, file, level of the sandbox.
    """

    tools: Mapping[str, Tool]
    resources: tuple[Closable, ...] = ()
    notes: tuple[str, ...] = ()
    identities: Mapping[str, Json] = field(default_factory=dict)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the renderer needs to know of the tools, in the order in which prompts list them."""
        return tuple(tool.spec for tool in self.tools.values())

    async def close(self) -> None:
        """Close the resources in reverse order."""
        await close_all(reversed(self.resources))


def build_search(
    section: SearchSection, provider: SearchProvider, cache: Cache | None = None
) -> "SearchTool":
    """The search tool; the caller closes the provider."""
    from ramify.tools.search import SearchTool

    return SearchTool(
        provider,
        cache,
        top_k=section.top_k,
        snippet_chars=section.snippet_chars,
        page_labels=section.page_labels,
        timeout_seconds=section.timeout_seconds,
        hedge_seconds=section.hedge_seconds,
    )


def build_tools(
    section: ToolsSection, sandbox: SandboxSection, note: Callable[[str], None] = lambda _: None
) -> Toolbox:
    """Open the tools of the recipe; `note` receives a note when an index is built.

    Raises:
        ConfigError: There is no tool, two have the same name, or a file of the user's own cannot be used.
        DataError: A passage file, a cache or a cassette cannot be read.
        MachineError: The sandbox cannot reach the level, or a key is missing.
    """
    built = _Build(note)
    # First what is most likely a user's mistake, then what opens files, and the cache last.
    for own in section.own:
        spec = built.own(own).spec
        if not spec.forks:
            built.notes.append(f"tool {spec.name}: class {own.function} has no fork, so no tree branches")
    if section.python is not None:
        built.python(section.python, sandbox)
    if section.search is not None:
        built.search(section)
    if not built.tools:
        raise ConfigError("tools: expected [tools.search], [tools.python] or [[tools.own]], found no tool")
    ours = [name for name in _OURS if name in built.tools]
    order = dict.fromkeys((*ours, *built.tools))
    return Toolbox(
        {name: built.tools[name] for name in order},
        tuple(built.resources),
        tuple(built.notes),
        built.identities,
    )


@dataclass(frozen=True, slots=True)
class ShownTools:
    """The tools of a recipe as its prompts show them, in their order; `notes` and `identities` as in `Toolbox`."""

    specs: tuple[ToolSpec, ...]
    notes: tuple[str, ...]
    identities: Mapping[str, Json]


def show_tools(section: ToolsSection) -> ShownTools:
    """What prompts show of the tools that `build_tools` would open; only the files of the user's own are read.

    Raises:
        ConfigError: Two tools have the same name, or a file cannot be used.
    """
    from ramify.tools import browser, search
    from ramify.tools.python import python_spec

    ours: list[ToolSpec] = []
    if section.search is not None:
        ours.append(search.SPEC if section.browser is None else browser.SPEC)
    if section.browser is not None and section.browser.open_page:
        ours.append(browser.OPEN_PAGE_SPEC)
    if section.python is not None:
        ours.append(python_spec(section.python.stateful, section.python.timeout_seconds))
    built = _Build(lambda _: None)
    for own in section.own:
        built.own(own)
    specs = (*ours, *(tool.spec for tool in built.tools.values()))
    return ShownTools(specs, tuple(built.notes), built.identities)


class _Build:
    """A toolbox under construction."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self.tools: dict[str, Tool] = {}
        self.resources: list[Closable] = []
        self.notes: list[str] = []
        self.identities: dict[str, Json] = {}

    def search(self, section: ToolsSection) -> None:
        """Add search, or the browser in its place."""
        assert section.search is not None
        offline = section.cache is not None and section.cache.mode == "replay_or_fail"
        provider = build_provider(section.search, offline, self._note)
        self.resources.append(provider)
        self.identities["search"] = {"provider": provider.name, **provider.identity}
        source = None if section.browser is None else page_source(section.browser)
        summary = None if section.browser is None else section.browser.summary
        model = None if summary is None else _summary_model(summary, offline)
        self.resources.extend(each for each in (source, model) if each is not None)
        cache = None
        if section.cache is not None:
            from ramify.config.build_services import build_cache

            cache = build_cache(section.cache)
            self.resources.append(cache)
        plain = build_search(section.search, provider, cache)
        if section.browser is None:
            self._add("search", plain)
            return
        assert source is not None
        self._browser(section.browser, plain, source, model, cache)

    def _browser(
        self,
        section: BrowserSection,
        search: "SearchTool",
        source: "PageSource",
        model: ChatModel | None,
        cache: Cache | None,
    ) -> None:
        from ramify.tools.browser import (
            BrowseSettings,
            BrowsingSearch,
            OpenPage,
            PageSummary,
            SummarySettings,
        )
        from ramify.tools.pages import Pages
        from ramify.tools.passage_near import PassageSettings

        pages, summary = Pages(source, cache), None
        if section.summary is not None and model is not None:
            how = SummarySettings(section.summary.max_tokens, section.summary.temperature)
            summary = PageSummary(model, how, cache)
        passage = PassageSettings(section.context_chars, section.head_chars)
        settings = BrowseSettings(section.pages_seconds, section.summary_seconds, passage)
        self._add("search", BrowsingSearch(search, pages, settings, summary))
        if section.open_page:
            self._add("open_page", OpenPage(pages, passage, section.pages_seconds))

    def _add(self, name: str, tool: Tool) -> None:
        if name in self.tools:
            raise ConfigError(
                f"tools: two tools are called {name!r}; give the one in [[tools.own]] another name"
            )
        self.tools[name] = tool

    def python(self, section: PythonSection, sandbox: SandboxSection) -> None:
        """Add the Python tool and its sandbox."""
        from ramify.tools.python import PythonTool

        opened = _open_sandbox(sandbox, section.timeout_seconds)
        self.resources.append(opened)
        self.identities["python"] = {"sandbox_level": opened.level}
        tool = PythonTool(
            opened,
            timeout_seconds=section.timeout_seconds,
            max_output_chars=section.max_output_chars,
            stateful=section.stateful,
        )
        self._add("python", tool)

    def own(self, section: OwnToolSection) -> Tool:
        """Add a tool of the user's own."""
        loaded = load_own(section)
        name = loaded.tool.spec.name
        self._add(name, loaded.tool)
        self.identities[name] = {"file": str(loaded.path), "sha256": loaded.sha256}
        self.notes.append(f"tool {name}: {section.function} of {loaded.path}, sha256 {loaded.sha256[:16]}")
        return loaded.tool


def _summary_model(section: ChatSection, offline: bool) -> ChatModel:
    name = "tools.browser.summary"
    return chat_model(name, section.url, section.model, section.key_variable, section.http, offline)


def load_own(section: OwnToolSection) -> "LoadedTool":
    """Load a tool from a function or class in the user's file.

    Raises:
        ConfigError: The file or the function cannot be used.
    """
    from ramify.tools.functions import load_tool

    return load_tool(
        section.path,
        section.function,
        section.args,
        name=section.name,
        timeout_seconds=section.timeout_seconds,
        hedge_seconds=section.hedge_seconds,
        in_prompt=section.in_prompt,
        max_threads=section.max_threads,
    )


def _open_sandbox(section: SandboxSection, timeout_seconds: float) -> Sandbox:
    if section.url is None:
        from ramify.sandbox.pool import open_sandbox

        return open_sandbox(section.min_level)
    from ramify.net.secrets import read_key
    from ramify.tools.remote_sandbox import RemoteSandbox

    key = None if section.key_variable is None else read_key(section.key_variable)
    # A second attempt would run the program twice.
    http = HttpSection(timeout_seconds=timeout_seconds + _SERVICE_SECONDS, attempts=1)
    return RemoteSandbox(
        http_client("sandbox", http, *([key] if key else [])),
        base_url=section.url,
        declared_level=section.level or 0,
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )
