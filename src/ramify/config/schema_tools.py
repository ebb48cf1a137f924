"""Schemas of the tools that the policy can call, and of the sandbox; each tool owns its settings (tools/configs.py)."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from ramify.config.schema_parts import Section
from ramify.core.config import Level, Name, ServiceUrl, Variable
from ramify.tools.configs import (
    BrightDataSearchConfig,
    BrowserConfig,
    CacheConfig,
    DenseSearchConfig,
    LocalSearchConfig,
    McpConfig,
    OpenEnvConfig,
    OwnEnvironmentConfig,
    OwnToolConfig,
    PythonConfig,
    RetrieverSearchConfig,
    SearxngSearchConfig,
    SerperSearchConfig,
)


def _provider(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    return value.get("provider", "local") if isinstance(value, dict) else getattr(value, "provider", "local")


SearchSection = Annotated[
    Annotated[LocalSearchConfig, Tag("local")]
    | Annotated[DenseSearchConfig, Tag("dense")]
    | Annotated[RetrieverSearchConfig, Tag("retriever")]
    | Annotated[BrightDataSearchConfig, Tag("brightdata")]
    | Annotated[SerperSearchConfig, Tag("serper")]
    | Annotated[SearxngSearchConfig, Tag("searxng")],
    Discriminator(_provider),
]


class ToolsSection(Section):
    """The tools that the policy can call; an absent table is an absent tool.

    SFT and DPO show them in prompts as RL does, and call none.
    """

    search: SearchSection | None = None
    browser: BrowserConfig | None = None
    python: PythonConfig | None = None
    own: tuple[OwnToolConfig, ...] = ()
    cache: CacheConfig | None = None

    @model_validator(mode="after")
    def _acting(self) -> "ToolsSection":
        if self.browser is not None and (
            self.search is None or self.search.provider in ("local", "dense", "retriever")
        ):
            raise ValueError(
                "browser: reads the pages that a web search finds; expected such a [tools.search]"
            )
        if self.cache is not None and self.search is None:
            raise ValueError("cache: there is no search whose answers could be cached. Remove it.")
        idle = [("hedge_seconds", "cache"), ("hedge_seconds", "browser")]
        idle += [("snippet_chars", "browser"), ("page_labels", "browser")]
        for key, other in idle:
            if self.search is not None and getattr(self, other) is not None and self.search.is_changed(key):
                raise ValueError(f"search.{key}: has no effect with {other}. Remove it.")
        return self


def _type(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    return value.get("type", "own") if isinstance(value, dict) else getattr(value, "type", "own")


EnvironmentSection = Annotated[
    Annotated[OwnEnvironmentConfig, Tag("own")]
    | Annotated[McpConfig, Tag("mcp")]
    | Annotated[OpenEnvConfig, Tag("openenv")],
    Discriminator(_type),
]
"""What the agent acts in, in place of a set of tools."""


Environments = Annotated[dict[Name, EnvironmentSection], Field(max_length=100)]
"""Several environments by name: each problem names its own in the column `environment`."""


def refuse_two_kinds(environment: EnvironmentSection | None, environments: Environments) -> None:
    """Refuse [environments.NAME] beside [environment] (ValueError)."""
    if environment is not None and environments:
        raise ValueError("environments: there is an [environment] too. Give it a name among them.")


def refuse_tools_beside(tools: ToolsSection, environment: EnvironmentSection | None) -> None:
    """Refuse tools beside an environment, which has tools of its own (ValueError)."""
    if environment is not None and tools != ToolsSection():
        raise ValueError("tools: the [environment] has tools of its own; leave [tools] out")


def refuse_idle_sandbox(tools: ToolsSection, sandbox: "SandboxSection") -> None:
    """Refuse settings of the sandbox without the Python tool, the only one that uses it (ValueError)."""
    has_tools = tools.search is not None or bool(tools.own)
    if has_tools and tools.python is None and sandbox != SandboxSection():
        raise ValueError("sandbox: only [tools.python] uses it, and the recipe has no such tool. Remove it.")


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
                raise ValueError(f"{key}: has no effect without url. Remove it.")
        if self.url is not None and (self.level or 0) < self.min_level:
            raise ValueError(
                f"level: expected what the service promises, at least min_level = {self.min_level}"
            )
        return self
