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


def Function(
    function: Callable[..., Any],
    **keys: Any,  # noqa: ANN401 - keys of [[tools.own]]
) -> OwnTool:
    """Return a function or a class as a tool with keys of `[[tools.own]]`, such as in_prompt and timeout_seconds.

    Args:
        function: The function or class.
        keys: The keys; `name` is the function's own where it is left out.

    Raises:
        ConfigError: A value is wrong.
    """
    path, name = name_function(function)
    return OwnTool(path=path, function=name, **{"name": function.__name__, **keys})
