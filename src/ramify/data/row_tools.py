"""The tools that a row of examples brings with it, as OpenAI's API and LLaMA-Factory write them."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ramify.core.errors import RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import ToolSpec
from ramify.data.row_columns import as_record, without_nulls
from ramify.data.row_messages import text_of

_UNREADABLE = "its tools cannot be read"
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
_PARAMETERS = ("parameters", "input_schema", "inputSchema", "args_schema", "args", "arguments")
"""Names of the schema of a tool's arguments: OpenAI's, Anthropic's, MCP's, LangChain's."""
_PROPERTIES = ("args", "arguments")
"""Those that may hold the properties alone."""
_READ = frozenset(
    {"name", "description", "type", "function", "strict", *_PARAMETERS}
    | {
        "title",
        "annotations",
        "cache_control",
        "returns",
        "return",
        "response",
        "results",
        "output_schema",
        "outputSchema",
    }
)
"""What is read of a tool, and what may be left out: no prompt shows what a tool returns."""
_TEXTS = 256
"""Texts of tools whose specs are kept: many rows have the same."""


def read_tools(value: object) -> str:
    """Return a row's tools as JSON text, the same for rows with equal tools; "" if there are none.

    Args:
        value: A list of {name, description?, parameters?}, each perhaps as the `function` of another record; or None. The list, and
            each record in it, may be JSON text.

    Raises:
        RowError: It is something else.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError as error:
            raise RowError(_UNREADABLE, str(error)) from None
    else:
        value = without_nulls(value)
    if not value:
        return ""
    if not isinstance(value, list):
        raise RowError(_UNREADABLE, f"expected a list, got {type(value).__name__}")
    try:
        tools = [_read_tool(tool, f"tool {number}") for number, tool in enumerate(value, 1)]
        written = json.dumps(tools, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError(_UNREADABLE, str(error)) from None
    return text_of(written, "'tools'")


def _read_tool(tool: object, where: str) -> dict[str, Any]:
    tool = as_record(tool)
    function = as_record(tool.get("function", tool)) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(_UNREADABLE, f"{where} has no name")
    names = [name for name in _PARAMETERS if function.get(name)]
    unread = [
        name for name, value in function.items() if name not in _READ and value not in (None, "", [], {})
    ]
    if unread or len(names) > 1:
        wrong = unread[0] if unread else f"{names[0]!r} and {names[1]}"
        raise RowError(_UNREADABLE, f"{where} has {wrong!r:.60}, which is not read")
    # False would be a schema that allows no arguments at all; a call without any is meant.
    parameters = _without_null_properties(as_record(function[names[0]])) if names else _NO_ARGUMENTS
    if names and names[0] in _PROPERTIES and isinstance(parameters, dict) and "properties" not in parameters:
        parameters = {"type": "object", "properties": parameters}
    description = function.get("description") or ""
    if not isinstance(description, str) or not _is_schema(parameters):
        raise RowError(_UNREADABLE, f"{where}: expected a description and the JSON schema of its parameters")
    return {"name": function["name"], "description": description, "parameters": parameters}


def _without_null_properties(schema: Any) -> Any:  # noqa: ANN401 - any value of a row
    """Return a schema without properties that are null: other tools of a table have them."""
    if isinstance(schema, list):
        return [_without_null_properties(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: part for name, part in _without_null_properties(inner).items() if part is not None}
        if key == "properties" and isinstance(inner, dict)
        else _without_null_properties(inner)
        for key, inner in schema.items()
    }


def _is_schema(parameters: object) -> bool:
    """Return False for what no JSON schema of arguments looks like; `core.tool_schema` takes care of the rest."""
    if isinstance(parameters, bool):
        return True
    if not isinstance(parameters, dict):
        return False
    # Data sets that pass through a table have null for what a schema leaves out.
    properties, required = parameters.get("properties") or {}, parameters.get("required") or []
    return (
        isinstance(properties, dict)
        and all(isinstance(schema, dict | bool) for schema in properties.values())
        and isinstance(required, list)
        and all(isinstance(name, str) for name in required)
    )


@lru_cache(_TEXTS)
def tool_specs(tools: str) -> tuple[ToolSpec, ...]:
    """Return the specs of the tools in a text of `read_tools`, for rendering; they are never called, so they need no deadline."""
    return tuple(
        ToolSpec(
            tool["name"],
            tool["description"],
            tool["parameters"],
            forks=False,
            timeout_seconds=0.0,
            in_prompt=True,
        )
        for tool in json.loads(tools)
    )
