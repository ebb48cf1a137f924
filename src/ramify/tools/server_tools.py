"""The tools that a server offers, within limits, and the messages of an MCP server as ramify's records.

Each tool is in every prompt, so a few careless ones would fill a context.
"""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ramify.core.json_text import cut_to
from ramify.core.messages import Observation, ParsedTurn, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession
from ramify.core.tree import Trajectory

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp_types import CallToolResult, ContentBlock, Tool

MAX_TOOLS = 1_000
MAX_DESCRIPTION = 20_000
"""Characters of a description; a longer one is cut, as a tool result is."""
MAX_TOTAL = 1_000_000
"""Characters of all descriptions and schemas."""


class ServerSession:
    """A session on a server: there is no user, a branch makes the path's calls again, and each call was paid."""

    __slots__ = ()

    async def step(self, turn: ParsedTurn) -> Observation:  # noqa: ARG002 - there is no user
        """Return an empty observation."""
        return Observation()

    async def fork(self, seed: int) -> EnvironmentSession:
        """Refuse: a server cannot copy a state.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a server's state cannot be copied")

    async def score(self, trajectory: Trajectory) -> float:  # noqa: ARG002 - each call was paid
        """Return 0."""
        return 0.0


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


async def list_tools(client: "ClientSession", seconds: float) -> dict[str, ToolSpec]:
    """Return the tools that a server lists, on all pages.

    Raises:
        MCPError: The server refuses, or is gone.
        TimeoutError: It takes longer than `seconds`, which is also the deadline of each tool.
        ToolListError: Its list is beyond the limits, or breaks the protocol.
    """
    import anyio
    from mcp_types import PaginatedRequestParams

    tools: list[Tool] = []
    cursors: set[str] = set()
    try:
        with anyio.fail_after(seconds):
            page = await client.list_tools()
            tools.extend(page.tools)
            # Some servers end their list with an empty cursor.
            while page.next_cursor:
                # Within the loop: a server may offer pages without end.
                require_few(len(tools))
                if page.next_cursor in cursors:
                    raise ToolListError(
                        f"its list of tools does not end: the cursor {page.next_cursor!r:.80} comes twice. Fix the server"
                    )
                cursors.add(page.next_cursor)
                page = await client.list_tools(params=PaginatedRequestParams(cursor=page.next_cursor))
                tools.extend(page.tools)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ToolListError(
            f"its list of tools breaks the protocol at {field:.80}: {first['msg']}. Fix the server"
        ) from None
    require_few(len(tools))
    specs = {
        tool.name: server_tool(tool.name, tool.description or "", tool.input_schema, seconds)
        for tool in tools
    }
    require_short(specs.values())
    return specs


async def call_tool(client: "ClientSession", call: ToolCall) -> "CallToolResult":
    """Run a call, without checking its result against the schema that a server may list for results.

    `client.call_tool` would check it: in the event loop, with patterns and references that the server wrote.

    Raises:
        MCPError: The server refuses, or is gone.
        ValueError: Its answer is not the result of a call.
    """
    from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

    params = CallToolRequestParams(name=call.name, arguments=dict(call.arguments))
    return await client.send_request(CallToolRequest(params=params), CallToolResult)


def read_answer(call: ToolCall, answer: "CallToolResult") -> ToolResult:
    """Read an answer as the policy sees it: its texts or, without any, its data as JSON."""
    texts = [_text(part) for part in answer.content]
    if answer.structured_content is not None and all(part.type != "text" for part in answer.content):
        texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if answer.is_error:
        return ToolResult(
            call.id, ToolStatus.ERROR, text.strip() or f"{call.name} failed and does not say why."
        )
    if not text.strip():
        return ToolResult(call.id, ToolStatus.EMPTY, f"{call.name} returned nothing.")
    return ToolResult(call.id, ToolStatus.OK, text)


def _text(part: "ContentBlock") -> str:
    """Return a part of an answer as text; what is no text is named."""
    if part.type == "text":
        return part.text
    if part.type == "resource_link":
        return f"[link to the resource {part.name}: {part.uri}]"
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        kind = part.resource.mime_type or "unknown type"
        return f"[resource {part.resource.uri}, {kind}, not shown]" if text is None else str(text)
    return f"[{part.type}, {part.mime_type}, not shown]"


def first_cause(error: BaseException) -> BaseException:
    """Return the first cause: errors that end a connection come in groups within groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def in_words(error: BaseException) -> str:
    """Return the message of an error in one line, for the policy and for people."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return "the server has closed the connection" if text == "Connection closed" else text
