"""What MCP and OpenEnv servers list of their tools: odd schemas are used, lists beyond the limits are one line."""

import asyncio
import json

import pytest

from loopback import as_json, serve
from mcp_servers import running, write_raw_server
from ramify.algos.branch_rules import RandomBrancher
from ramify.assemble.tools import build_tools
from ramify.chat.arguments import expected_arguments
from ramify.config.schema_parts import SandboxSection, ToolsSection
from ramify.core.errors import ConfigError
from ramify.core.messages import ToolCall, ToolStatus
from ramify.core.tree import StopReason
from ramify.engines.scripted import ScriptedTurn
from ramify.rollout.grow import grow_trees
from ramify.tools.configs import McpConfig, OpenEnvConfig
from ramify.tools.mcp_environment import open_mcp
from ramify.tools.openenv_environment import open_openenv
from random_schemas import FINE, ODD
from scripted_agents import agent_in, problem

pytest.importorskip("mcp")
pytestmark = pytest.mark.integration
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}


def tool(name, schema=SCHEMA, **more):
    return {"name": name, "inputSchema": schema, **more}


def is_mcp(schema):
    """Return True for what the package mcp lets through."""
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    is_map = isinstance(properties, dict) and all(
        isinstance(part, dict | bool) for part in properties.values()
    )
    return is_map and isinstance(required, list) and all(isinstance(name, str) for name in required)


# The transport turns half a character into a question mark.
LISTED = {name: case for name, case in ODD.items() if is_mcp(case[0]) and name != "half a character"}
REFUSED = {name: case[0] for name, case in ODD.items() if not is_mcp(case[0])}


def odd_tools():
    return [
        tool(f"tool{number}", {"type": "object", **case[0]}) for number, case in enumerate(LISTED.values())
    ]


def opened(folder, *lists):
    command = write_raw_server(folder, *lists)
    environment = open_mcp(McpConfig(command=command, timeout_seconds=30.0))
    assert running(command) == []
    return environment


def called(environment, *names):
    async def main():
        session = await environment.open(problem(), 0)
        try:
            return [await session.call(ToolCall("c", name, {})) for name in names], session.tools
        finally:
            await session.close()

    return asyncio.run(main())


def test_odd_schemas_of_an_mcp_server(tmp_path):
    tools = opened(tmp_path, odd_tools()).tools
    for spec, (_, words) in zip(tools.values(), LISTED.values(), strict=True):
        assert words in expected_arguments(spec.parameters)


def test_schemas_that_are_fine_are_as_the_server_wrote_them(tmp_path):
    schemas = [{"type": "object", **schema} for schema in FINE]
    tools = opened(tmp_path, [tool(f"tool{number}", schema) for number, schema in enumerate(schemas)]).tools
    assert [spec.parameters for spec in tools.values()] == schemas


def test_a_run_goes_on_after_a_malformed_call_of_a_tool_with_an_odd_schema(tmp_path, tokenizer_folder):
    environment = opened(tmp_path, [tool("look", LISTED["a circle"][0])])
    turns = ["<look> { </look>", "<look> {} </look>", "<answer> 1 </answer>"]

    def play(context, seed):
        return ScriptedTurn(turns[context.count("\n</result>")])

    parts = agent_in(environment, tokenizer_folder, RandomBrancher(m=1, rate=0.0), play, n=1)
    (tree,) = asyncio.run(grow_trees(parts, [problem()], 0))
    (leaf,) = tree.trajectories
    assert leaf.stop is StopReason.ANSWERED
    assert "expected an object with a (any value, optional)" in leaf.nodes[2].text


def test_a_list_that_changes_in_mid_run_is_read_alike(tmp_path):
    environment = opened(tmp_path, [tool("look")], odd_tools())
    (result,), tools = called(environment, "look")
    assert (result.status, result.text) == (ToolStatus.OK, "done")
    assert len(tools) == len(LISTED)
    for spec, (_, words) in zip(tools.values(), LISTED.values(), strict=True):
        assert words in expected_arguments(spec.parameters)


@pytest.mark.parametrize(
    "later", [[tool(f"t{number}") for number in range(1_001)], [{"name": 5}], [tool("x", True)]]
)
def test_a_later_list_that_cannot_be_used_leaves_the_old_one(tmp_path, later):
    environment = opened(tmp_path, [tool("look")], later)
    results, tools = called(environment, "look", "look")
    assert [result.text for result in results] == ["done", "done"]
    assert list(tools) == ["look"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "number"}}},
        {"type": "object", "$ref": "#"},
        {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}},
    ],
    ids=["another type", "a circle", "a pattern that takes for ever"],
)
def test_results_are_not_held_against_a_schema_of_the_server(tmp_path, schema):
    environment = opened(tmp_path, [tool("look", outputSchema=schema)])
    (result,), _ = called(environment, "look")
    assert (result.status, result.text) == (ToolStatus.OK, "done")


def test_an_answer_that_is_no_result_is_an_error_of_the_call(tmp_path):
    results, _ = called(opened(tmp_path, [tool("wrong"), tool("look")]), "wrong", "look")
    assert [result.status for result in results] == [ToolStatus.ERROR, ToolStatus.OK]
    assert results[0].text.endswith("not a result of a call.")


def test_a_long_description_is_cut_and_noted(tmp_path):
    command = write_raw_server(
        tmp_path, [tool("look", description="x" * 10**7), tool("find", description="y")]
    )
    section = McpConfig(command=command)
    toolbox = build_tools(ToolsSection(), SandboxSection(), section)
    look, find = toolbox.specs
    assert (len(look.description) < 20_100, find.description) == (True, "y")
    assert look.description.endswith(f"[cut: {10**7 - 20_000} more characters]")
    assert toolbox.notes[1].endswith(": the description of tool look was cut to 20,000 characters")


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([tool(f"t{number}") for number in range(20_000)], "it lists more than 1,000 tools"),
        (
            [
                tool("big", description="x" * 15_000),
                *(tool(f"t{n}", description="x" * 10_000) for n in range(100)),
            ],
            r"its 101 tools have 1,0\d\d,\d\d\d characters .*'big' alone 15,\d\d\d; expected at most 1,000,000",
        ),
        ([], "the server lists no tools. Choose a server with tools."),
    ],
    ids=["many", "long", "none"],
)
def test_a_list_beyond_the_limits_is_one_line(tmp_path, tools, reason):
    with pytest.raises(ConfigError, match=reason) as raised:
        opened(tmp_path, tools)
    assert str(raised.value).startswith("mcp: ")
    assert "server.py" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_cursor_that_comes_twice_is_one_line(tmp_path):
    for tools in ([tool("look")], []):
        command = write_raw_server(tmp_path, tools, nextCursor="same")
        with pytest.raises(
            ConfigError, match=r"does not end: the cursor 'same' comes twice\. Fix the server"
        ):
            open_mcp(McpConfig(command=command, timeout_seconds=30.0))
    command = write_raw_server(tmp_path, [tool("look")], nextCursor="")
    assert list(open_mcp(McpConfig(command=command, timeout_seconds=30.0)).tools) == ["look"]


@pytest.mark.parametrize(
    "tools",
    [
        *([tool("x", {"type": "object", **schema})] for schema in REFUSED.values()),
        [tool("x", True)],
        [tool("x", {"type": "string"})],
        [tool("x", outputSchema={"type": 5})],
        [{"name": "x"}],
        [{"name": 5, "inputSchema": {}}],
        [5],
        5,
    ],
)
def test_a_list_that_breaks_the_protocol_is_one_line(tmp_path, tools):
    with pytest.raises(ConfigError, match=r"breaks the protocol at tools.*\. Fix the server\.$") as raised:
        opened(tmp_path, tools)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(("schema", "words"), [case for case in ODD.values() if case[1] != "no arguments"])
def test_odd_schemas_of_an_openenv_server(schema, words):
    with serve(lambda _: as_json(json.loads(json.dumps({"action": schema})))) as server:
        (spec,) = open_openenv(OpenEnvConfig(url=server.url)).tools.values()
    assert words in expected_arguments(spec.parameters)
    assert spec.parameters["type"] == "object"
