"""Tools, and settings of environments; public: `rf.tools`. A plain function or class is a tool too, without any of these."""

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
