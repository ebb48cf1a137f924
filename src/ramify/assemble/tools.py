"""Builds what the agent of a checked recipe acts in: its tools, or its environment."""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ramify.assemble.services import build_cache, build_provider, chat_model, http_client, page_source
from ramify.config.schema_parts import EnvironmentSection, SandboxSection, SearchSection, ToolsSection
from ramify.core.closing import Closable
from ramify.core.errors import ConfigError
from ramify.core.messages import ToolSpec
from ramify.core.protocols import Cache, Environment, Json, Sandbox, Tool
from ramify.net.configs import HttpConfig
from ramify.net.secrets import shown
from ramify.sampler.task import ShownTools, Toolbox
from ramify.tools.configs import OpenEnvConfig, OwnEnvironmentConfig, OwnToolConfig, PythonConfig
from ramify.tools.server_tools import MAX_DESCRIPTION

if TYPE_CHECKING:
    from ramify.sandbox.program_setup import ProgramSetup

_OURS = ("search", "open_page", "python")
"""ramify's tools in the order in which prompts list them."""

_SERVICE_SECONDS = 5.0
"""Time that a sandbox service may take in addition to the program's own time."""


def build_tools(
    section: ToolsSection,
    sandbox: SandboxSection,
    environment: EnvironmentSection | None = None,
    note: Callable[[str], None] = lambda _: None,
    environments: Mapping[str, EnvironmentSection] = MappingProxyType({}),
) -> Toolbox:
    """Open the environment of the recipe, or its environments by name, or its tools; `note` receives a note when an index is built.

    Raises:
        ConfigError: There is no tool, two have the same name, or a file of the user's own cannot be used.
        DataError: A passage file, a cache or a cassette cannot be read.
        MachineError: The sandbox cannot reach the level, or a key is missing.
    """
    from ramify.rollout.tool_set import ToolSet

    if environments:
        return _build_environments(environments)
    if environment is not None:
        return _build_environment(environment)
    built = _Build(note)
    # First what is most likely a user's mistake, then what opens files, and the cache last.
    owned = [built.own(own).spec for own in section.own]
    for own, spec in zip(section.own, owned, strict=True):
        if not spec.forks:
            built.notes.append(f"tool {spec.name}: class {own.function} has no fork, so no tree branches")
    if section.python is not None:
        built.python(section.python, sandbox)
    if section.search is not None:
        built.search(section)
    if not built.tools:
        raise ConfigError(
            "tools: expected [tools.search], [tools.python] or [[tools.own]], found no tool and no [environment]"
        )
    ours = [name for name in _OURS if name in built.tools]
    order = dict.fromkeys((*ours, *built.tools))
    configs = {
        **({} if section.search is None else {"search": section.search}),
        **({} if section.python is None else {"python": section.python}),
        **{spec.name: own for own, spec in zip(section.own, owned, strict=True)},
    }
    limits = {name: (config.max_calls, config.limit_reply) for name, config in configs.items()}
    repeat_reply = None if section.search is None else section.search.repeat_reply
    return Toolbox(
        ToolSet(
            {name: built.tools[name] for name in order},
            {name: most for name, (most, _) in limits.items() if most is not None},
            {name: reply for name, (_, reply) in limits.items() if reply is not None},
            {} if repeat_reply is None else {"search": repeat_reply},
        ),
        tuple(built.resources),
        tuple(built.notes),
        built.identities,
    )


def _build_environment(section: EnvironmentSection) -> Toolbox:
    """Build the environment of the recipe; of a server the tools are asked for now."""
    if isinstance(section, OwnEnvironmentConfig):
        from ramify.tools.class_environment import load_environment

        environment, sha256 = load_environment(section)
        note = f"environment: {section.function} of {section.path}, sha256 {sha256[:16]}"
        return Toolbox(environment, notes=(note,), identities={"environment": {"sha256": sha256}})
    if isinstance(section, OpenEnvConfig):
        from ramify.tools.openenv_environment import open_openenv

        return _served(open_openenv(section), section.url)
    from ramify.tools.mcp_environment import open_mcp

    return _served(open_mcp(section), section.url or shlex.join(section.command))


def _build_environments(sections: Mapping[str, EnvironmentSection]) -> Toolbox:
    built = {name: _build_environment(section) for name, section in sections.items()}
    return Toolbox(
        next(iter(built.values())).environment,
        notes=tuple(f"{name}: {note}" for name, toolbox in built.items() for note in toolbox.notes),
        identities={"environments": {name: dict(toolbox.identities) for name, toolbox in built.items()}},
        environments={name: toolbox.environment for name, toolbox in built.items()},
    )


def _served(environment: Environment, server: str) -> Toolbox:
    """Return the environment of a server; what it lists is part of what a run is made from."""
    notes = [
        f"environment: {shown(server)}, tools {', '.join(environment.tools)}",
        *(
            f"environment: {shown(server)}: the description of tool {name} was cut to {MAX_DESCRIPTION:,} characters"
            for name, spec in environment.tools.items()
            if len(spec.description) > MAX_DESCRIPTION
        ),
    ]
    listed = {name: [spec.description, dict(spec.parameters)] for name, spec in environment.tools.items()}
    sha256 = hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
    return Toolbox(environment, notes=tuple(notes), identities={"environment": {"tools_sha256": sha256}})


def show_tools(
    section: ToolsSection,
    environment: EnvironmentSection | None = None,
    environments: Mapping[str, EnvironmentSection] = MappingProxyType({}),
) -> ShownTools:
    """Return what prompts show of the tools that `build_tools` would open. Only files of user-defined tools are read.

    Raises:
        ConfigError: Two tools have the same name, or a file cannot be used.
    """
    from ramify.tools import browser, search
    from ramify.tools.python import python_spec

    if environments:
        return _build_environments(environments).shown
    if environment is not None:
        return _build_environment(environment).shown
    ours: list[ToolSpec] = []
    if section.search is not None:
        ours.append(search.SPEC if section.browser is None else browser.SPEC)
    if section.browser is not None and section.browser.open_page:
        ours.append(browser.OPEN_PAGE_SPEC)
    if section.python is not None:
        ours.append(python_spec(section.python))
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
        from ramify.tools.search import SearchTool

        config, browser = section.search, section.browser
        assert config is not None
        offline = section.cache is not None and section.cache.mode == "replay_or_fail"
        provider = build_provider(config, offline, self._note)
        self.resources.append(provider)
        self.identities["search"] = {"provider": provider.name, **provider.identity}
        source = None if browser is None else page_source(browser)
        summary_config = None if browser is None else browser.summary
        model = None
        if summary_config is not None:
            top_p = summary_config.top_p
            extra = {"top_p": top_p} if top_p < 1 else {}
            model = chat_model("tools.browser.summary", summary_config, offline, extra=extra)
        cache = None if section.cache is None else build_cache(section.cache)
        self.resources.extend(each for each in (source, model, cache) if each is not None)
        plain = SearchTool(provider, cache, config)
        others = {
            name: self._search_of(name, other, offline, cache)
            for name, other in (section.search_of or {}).items()
        }
        if browser is None or source is None:
            self._add("search", _routed(plain, others))
            return
        from ramify.tools.browser import BrowsingSearch, OpenPage, PageSummary
        from ramify.tools.pages import Pages

        pages = Pages(source, cache)
        summary = (
            None if summary_config is None or model is None else PageSummary(model, summary_config, cache)
        )
        self._add("search", _routed(BrowsingSearch(plain, pages, browser, summary), others))
        if browser.open_page:
            self._add("open_page", OpenPage(pages, browser))

    def _search_of(self, benchmark: str, config: SearchSection, offline: bool, cache: Cache | None) -> Tool:
        from ramify.tools.search import SearchTool

        provider = build_provider(config, offline, self._note)
        self.resources.insert(0, provider)
        self.identities[f"search_of.{benchmark}"] = {"provider": provider.name, **provider.identity}
        return SearchTool(provider, cache, config)

    def _add(self, name: str, tool: Tool) -> None:
        if name in self.tools:
            raise ConfigError(
                f"tools: two tools are called {name!r}; give the one in [[tools.own]] another name"
            )
        self.tools[name] = tool

    def python(self, config: PythonConfig, sandbox: SandboxSection) -> None:
        """Add the Python tool and its sandbox."""
        from ramify.tools.python import PythonTool, setup_of

        setup = setup_of(config)
        opened = _open_sandbox(sandbox, config.timeout_seconds, setup)
        self.resources.append(opened)
        identity: dict[str, Json] = {"sandbox_level": opened.level}
        if setup.versions:
            identity["environment"] = setup.environment or sys.prefix
            identity["packages"] = dict(setup.versions)
        self.identities["python"] = identity
        if setup.preamble:
            sha256 = hashlib.sha256(setup.preamble.encode()).hexdigest()
            self.identities["python.preamble"] = {"sha256": sha256}
        if sandbox.url is None and (setup.preamble or setup.paths):
            self.notes.append(_setup_note(setup, opened.level))
        self._add("python", PythonTool(opened, config, setup))

    def own(self, config: OwnToolConfig) -> Tool:
        """Add a tool of the user's own."""
        from ramify.tools.functions import load_tool

        tool, sha256 = load_tool(config)
        name = tool.spec.name
        self._add(name, tool)
        self.identities[name] = {"file": str(config.path), "sha256": sha256}
        self.notes.append(f"tool {name}: {config.function} of {config.path}, sha256 {sha256[:16]}")
        return tool


def _setup_note(setup: "ProgramSetup", level: int) -> str:
    """Try a setup; return a line on its contents and its cost."""
    from ramify.sandbox.levels import try_setup

    seconds = try_setup(level, setup)
    parts = [f"preamble of {len(setup.preamble.splitlines())} lines"] if setup.preamble else []
    if setup.paths:
        parts.append(f"{len(setup.versions)} packages of {setup.environment or sys.prefix}")
    when = "once, before programs are forked" if level else "again for each program, at level 0"
    return f"tool python: {', '.join(parts)}: {seconds:.1f} s to load, {when}"


def _routed(usual: Tool, others: Mapping[str, Tool]) -> Tool:
    from ramify.tools.search import SearchByBenchmark

    return SearchByBenchmark(usual, others) if others else usual


def _open_sandbox(section: SandboxSection, timeout_seconds: float, setup: "ProgramSetup") -> Sandbox:
    if section.url is None:
        from ramify.sandbox.pool import open_sandbox

        return open_sandbox(section.min_level, setup=setup)
    from ramify.net.secrets import read_key
    from ramify.tools.python import RemoteSandbox

    key = None if section.key_variable is None else read_key(section.key_variable)
    # A second attempt would run the program twice.
    http = HttpConfig(timeout_seconds=timeout_seconds + _SERVICE_SECONDS, attempts=1)
    return RemoteSandbox(
        http_client("sandbox", http, key),
        base_url=section.url,
        declared_level=section.level or 0,
        headers={"Authorization": f"Bearer {key}"} if key else None,
        preamble=setup.preamble,
    )
