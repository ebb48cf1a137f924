"""The tools that a row of examples brings with it, as OpenAI's API and LLaMA-Factory write them."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ramify.core.errors import RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import ToolSpec
from ramify.data.example_lines import text_of

_UNREADABLE = "its tools cannot be read"
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
_TEXTS = 256
"""Texts of tools whose specs are kept: many rows have the same."""


def read_tools(value: object) -> str:
    """Return a row's tools as JSON text, the same for rows with equal tools; "" if there are none.

    Args:
        value: A list of {name, description?, parameters?}, each perhaps as the `function` of another record; or such a list as
            JSON text; or None.

    Raises:
        RowError: It is something else.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError as error:
            raise RowError(_UNREADABLE, str(error)) from None
    if not value:
        return ""
    if not isinstance(value, list):
        raise RowError(_UNREADABLE, f"expected a list, got {type(value).__name__}")
    tools = [_read_tool(tool, f"tool {number}") for number, tool in enumerate(value, 1)]
    try:
        written = json.dumps(tools, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError(_UNREADABLE, str(error)) from None
    return text_of(written, "'tools'")


def _read_tool(tool: object, where: str) -> dict[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(_UNREADABLE, f"{where} has no name")
    description, parameters = function.get("description") or "", function.get("parameters")
    # False would be a schema that allows no arguments at all; a call without any is meant.
    parameters = parameters or _NO_ARGUMENTS
    if not isinstance(description, str) or not _is_schema(parameters):
        raise RowError(_UNREADABLE, f"{where}: expected a description and the JSON schema of its parameters")
    return {"name": function["name"], "description": description, "parameters": parameters}


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
