"""Loading a user's own tool, named by file and function.

The file runs with all rights of the run: it is the user's code, not the model's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError
from ramify.core.protocols import Tool
from ramify.tools.functions import tool_from
from ramify.user_files import load_function


@dataclass(frozen=True, slots=True)
class LoadedTool:
    """A tool, and the path and hash of the file that it was loaded from."""

    tool: Tool
    path: Path
    sha256: str


def load_tool(
    path: Path,
    function: str,
    args: Mapping[str, Any],
    *,
    name: str | None = None,
    timeout_seconds: float = 60.0,
    hedge_seconds: float | None = None,
    in_prompt: bool = True,
    max_threads: int = 32,
) -> LoadedTool:
    """Make a tool from a function or class in a Python file.

    Two tools from one file share its module. The folder of the file is not searched for other modules.

    Args:
        path: The file.
        function: Name of the function or class in the file.
        args, name, timeout_seconds, hedge_seconds, in_prompt, max_threads: As in `tool_from`.

    Raises:
        ConfigError: The file cannot be read or run, or has no such tool; one line that begins with the path.
    """
    loaded = load_function(path, function)
    try:
        tool = tool_from(
            loaded.function,
            name=name,
            args=args,
            timeout_seconds=timeout_seconds,
            hedge_seconds=hedge_seconds,
            in_prompt=in_prompt,
            max_threads=max_threads,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return LoadedTool(tool, path, loaded.sha256)
