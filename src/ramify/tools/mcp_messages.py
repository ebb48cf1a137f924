"""Messages of an MCP server as ramify's records: its tools, its answers, its failures."""

import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ramify.core.messages import ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.tools.server_tools import ToolListError, require_few, require_short, server_tool

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp_types import CallToolResult, ContentBlock, Tool


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
    try:
        with anyio.fail_after(seconds):
            page = await client.list_tools()
            tools.extend(page.tools)
            while page.next_cursor is not None:
                # Within the loop: a server may offer pages without end.
                require_few(len(tools))
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
