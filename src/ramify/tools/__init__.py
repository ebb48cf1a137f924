"""Tools, and settings of environments; public: `rf.tools`. A plain function or class is a tool too, without any of these."""

from collections.abc import Callable
from typing import Any

from ramify.files.user_code import name_function
from ramify.tools.configs import BrightDataSearchConfig as BrightDataSearch
from ramify.tools.configs import BrowserConfig as Browser
from ramify.tools.configs import CacheConfig as Cache
from ramify.tools.configs import DenseSearchConfig as DenseSearch
from ramify.tools.configs import LocalSearchConfig as LocalSearch
from ramify.tools.configs import McpConfig as Mcp
from ramify.tools.configs import OpenEnvConfig as OpenEnv
from ramify.tools.configs import OwnEnvironmentConfig as OwnEnvironment
from ramify.tools.configs import OwnToolConfig as OwnTool
from ramify.tools.configs import PythonConfig as Python
from ramify.tools.configs import RetrieverSearchConfig as RetrieverSearch
from ramify.tools.configs import SearxngSearchConfig as SearxngSearch
from ramify.tools.configs import SerperSearchConfig as SerperSearch

__all__ = [
    "BrightDataSearch",
    "Browser",
    "Cache",
    "ClassEnvironment",
    "DenseSearch",
    "Function",
    "LocalSearch",
    "Mcp",
    "OpenEnv",
    "OwnEnvironment",
    "OwnTool",
    "Python",
    "RetrieverSearch",
    "SearxngSearch",
    "SerperSearch",
]


def Function(function: Callable[..., Any], **settings: Any) -> OwnTool:  # noqa: ANN401 - keys of [[tools.own]]
    """Return a function or class as a tool with settings: max_calls, timeout_seconds, in_prompt, args and the others of `[[tools.own]]`.

    Raises:
        ConfigError: A setting is wrong.
    """
    path, name = name_function(function)
    plain = getattr(function, "__name__", "")
    named = {"name": plain} if plain.isidentifier() and plain != name else {}
    return OwnTool(path=path, function=name, **{**named, **settings})


def ClassEnvironment(source: type, **settings: Any) -> OwnEnvironment:  # noqa: ANN401 - keys of [environment]
    """Return a class as an environment with settings: max_steps, in_prompt, args and the others of `[environment]`.

    Raises:
        ConfigError: A setting is wrong.
    """
    path, name = name_function(source)
    return OwnEnvironment(path=path, function=name, **settings)
