"""The tools that a server offers, within limits: each is in every prompt, so a few careless ones would fill a context."""

import json
from collections.abc import Iterable, Mapping

from ramify.core.json_text import cut_to
from ramify.core.messages import ToolSpec

MAX_TOOLS = 1_000
MAX_DESCRIPTION = 20_000
"""Characters of a description; a longer one is cut, as a tool result is."""
MAX_TOTAL = 1_000_000
"""Characters of all descriptions and schemas."""


class ToolListError(ValueError):
    """A server's list of tools is beyond the limits."""


def server_tool(name: str, description: str, parameters: object, seconds: float) -> ToolSpec:
    """Describe a tool of a server, whose state can be rebuilt for a branch; `seconds` is its deadline."""
    schema = parameters if isinstance(parameters, Mapping) else {}
    text = cut_to(MAX_DESCRIPTION, description)
    return ToolSpec(name, text, schema, forks=True, timeout_seconds=seconds, in_prompt=True)


def require_few(count: int) -> None:
    """Check the number of tools, before they are read.

    Raises:
        ToolListError: There are more than `MAX_TOOLS`.
    """
    if count > MAX_TOOLS:
        raise ToolListError(f"it lists more than {MAX_TOOLS:,} tools. Choose a server with fewer")


def require_short(tools: Iterable[ToolSpec]) -> None:
    """Check what the tools take of a prompt.

    Raises:
        ToolListError: They have more than `MAX_TOTAL` characters; names the longest.
    """
    sizes = {tool.name: len(tool.description) + len(json.dumps(tool.parameters)) for tool in tools}
    if (total := sum(sizes.values())) > MAX_TOTAL:
        longest = max(sizes, key=sizes.__getitem__)
        raise ToolListError(
            f"its {len(sizes):,} tools have {total:,} characters of descriptions and schemas, tool {longest!r:.80} alone "
            f"{sizes[longest]:,}; expected at most {MAX_TOTAL:,}. Choose a server with fewer or shorter tools"
        )
