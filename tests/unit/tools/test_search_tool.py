import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ramify.core.messages import Message, Problem, ToolCall, ToolResult, ToolStatus
from ramify.tools.passages import PassageIndex
from ramify.tools.search import SearchTool

ROWS = [
    {"id": "p1", "text": "Laru  area\n56 .", "collection": "e1"},
    {"id": "p2", "text": "Laru age 31 .", "collection": "e1"},
    {"id": "p3", "text": "Laru area 12 .", "collection": "e2"},
    {"id": "p4", "text": "Laru area\t56 .", "collection": "e1"},
]


@pytest.fixture
def index(tmp_path: Path) -> PassageIndex:
    path = tmp_path / "passages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return PassageIndex.build(path)


def ask(tool: SearchTool, arguments: Mapping[str, Any], **info: object) -> ToolResult:
    async def run() -> ToolResult:
        problem = Problem("q", (Message.of("user", "?"),), ("a",), info)
        session = await tool.open(problem)
        result = await session.call(ToolCall("c1", "search", arguments))
        forked = await session.fork()
        await session.close()
        await session.close()
        assert await forked.call(ToolCall("c1", "search", arguments)) == result
        return result

    return asyncio.run(run())


def test_lines_are_distinct_collapsed_passages(index: PassageIndex) -> None:
    result = ask(SearchTool(index, 4, 100, False, 5.0), {"query": "laru area"})
    assert result.status is ToolStatus.OK
    assert result.call_id == "c1"
    assert result.text.splitlines() == ["Laru area 56 .", "Laru area 12 .", "Laru age 31 ."]
    assert result.info == {"passages": ["p1", "p3", "p2"]}


def test_page_labels_count_from_one(index: PassageIndex) -> None:
    result = ask(SearchTool(index, 4, 100, True, 5.0), {"query": "laru age"})
    assert result.text.splitlines()[0] == "Page 1: Laru age 31 ."
    assert result.text.splitlines()[1].startswith("Page 2: Laru area")


def test_snippets_are_cut_and_top_k_holds(index: PassageIndex) -> None:
    result = ask(SearchTool(index, 1, 6, True, 5.0), {"query": "laru age"})
    assert result.text == "Page 1: Laru a"


def test_a_problem_sees_its_collection_only(index: PassageIndex) -> None:
    tool = SearchTool(index, 4, 100, False, 5.0)
    assert ask(tool, {"query": "laru area"}, collection="e2").info == {"passages": ["p3"]}
    assert ask(tool, {"query": "laru area"}, collection="none").status is ToolStatus.EMPTY
    assert ask(tool, {"query": "laru area"}, collection=None).status is ToolStatus.OK


@pytest.mark.parametrize("query", ["", "zebra", "(((", "\ud800", "\x00"])
def test_no_hit_is_an_empty_result(index: PassageIndex, query: str) -> None:
    result = ask(SearchTool(index, 4, 100, True, 5.0), {"query": query})
    assert (result.status, result.text) == (ToolStatus.EMPTY, "No search results found.")


@pytest.mark.parametrize("arguments", [{}, {"query": None}, {"query": ["laru"]}])
def test_a_call_without_a_query_is_malformed(index: PassageIndex, arguments: dict[str, Any]) -> None:
    assert ask(SearchTool(index, 4, 100, True, 5.0), arguments).status is ToolStatus.MALFORMED


def test_spec_names_the_argument_and_the_deadline(index: PassageIndex) -> None:
    spec = SearchTool(index, 4, 100, True, 2.5).spec
    assert (spec.name, spec.forks, spec.timeout_seconds) == ("search", True, 2.5)
    assert spec.parameters["required"] == ["query"]


def test_limits_below_one_are_refused(index: PassageIndex) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SearchTool(index, 0, 100, True, 5.0)
