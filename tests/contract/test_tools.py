"""Laws of every tool: whatever is asked is answered with a typed result, forks are independent, nothing is random."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from loopback import Reply, as_json, serve
from ramify.assemble.tools import build_tools
from ramify.config.schema_parts import SandboxSection, ToolsSection
from ramify.core.messages import Message, Problem, ToolCall, ToolStatus

pytestmark = pytest.mark.integration

PROBLEM = Problem("p", (Message.of("user", "?"),), ("42",))
OWN = '''
def add(left: int, right: int = 1) -> int:
    """Add two numbers.

    Args:
        left: The first.
        right: The second.
    """
    return left + right
'''
ROWS = "".join(
    f"<p>Laru is a town of {i} houses by the river, and its mayor is Bado since then.</p>" for i in range(30)
)
PAGE = f"<html><head><title>Towns</title></head><body><article>{ROWS}</article></body></html>"


@dataclass(frozen=True)
class Case:
    """A tool of a recipe: the table that asks for it, its name, and a call that works."""

    table: str
    name: str
    good: Mapping[str, Any]
    keeps_state: bool = False


CASES = {
    "local search": Case("search", "search", {"query": "capital of France"}),
    "browser": Case("browser", "search", {"query": "mayor of Laru"}),
    "open_page": Case("browser", "open_page", {"url": "PAGE"}),
    "python": Case("python", "python", {"code": "print(6 * 7)"}),
    "stateful python": Case("python", "python", {"code": "print(6 * 7)"}, keeps_state=True),
    "own": Case("own", "add", {"left": 3}),
}
BAD = [
    {},
    {"query": 3, "code": None, "url": 7, "left": "x"},
    {"query": ["a"], "code": {"b": 1}, "url": [], "left": []},
]


@pytest.fixture(scope="module")
def web():
    """A SearXNG instance and the page that it finds."""

    def answer(request):
        if request.path.startswith("/search"):
            hit = {"url": f"{here.url}/page", "title": "Towns", "content": "The mayor of Laru is Bado."}
            return as_json({"results": [hit]})
        return Reply(200, PAGE.encode(), {"content-type": "text/html"})

    with serve(answer) as here:
        yield here.url


def tables(case, folder, web):
    (folder / "own.py").write_text(OWN)
    (folder / "passages.jsonl").write_text('{"text": "Paris is the capital of France."}\n{"text": "Rome."}\n')
    return {
        "search": {"search": {"corpus": folder / "passages.jsonl"}},
        "browser": {
            "search": {"provider": "searxng", "url": web},
            "browser": {"open_page": True, "networks": ["127.0.0.0/8"]},
        },
        "python": {"python": {"timeout_seconds": 10.0, "stateful": case.startswith("stateful")}},
        "own": {"own": [{"path": folder / "own.py", "function": "add"}]},
    }[CASES[case].table]


@pytest.fixture
def toolbox(request, tmp_path, web):
    case = request.node.callspec.params["case"]
    return build_tools(ToolsSection.model_validate(tables(case, tmp_path, web)), SandboxSection(min_level=0))


def arguments(case, web):
    return {key: f"{web}/page" if value == "PAGE" else value for key, value in CASES[case].good.items()}


def use(toolbox, case, work):
    async def main():
        session = await toolbox.environment.members[CASES[case].name].open(PROBLEM)
        try:
            return await asyncio.wait_for(work(session), 60)
        finally:
            await session.close()
            await toolbox.close()

    return asyncio.run(main())


@pytest.fixture
def good(request, web):
    """A call that works, under an id."""
    case = request.node.callspec.params["case"]
    return lambda identifier="c0": ToolCall(identifier, CASES[case].name, arguments(case, web))


def test_every_table_of_a_recipe_that_makes_a_tool_is_tested_here():
    # A table of `search_of` is one of [tools.search] for a benchmark.
    assert {case.table for case in CASES.values()} == set(ToolsSection.model_fields) - {"cache", "search_of"}


@pytest.mark.parametrize("case", CASES)
def test_the_spec_says_how_to_call_it(toolbox, case):
    spec = toolbox.environment.members[CASES[case].name].spec
    assert spec.name == CASES[case].name
    assert spec.description.strip()
    assert spec.timeout_seconds > 0
    assert json.loads(json.dumps(spec.parameters)) == spec.parameters
    assert set(spec.parameters["required"]) <= spec.parameters["properties"].keys()
    assert set(spec.parameters["required"]) == CASES[case].good.keys()


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_answered_under_its_id_and_twice_alike(toolbox, good, case):
    async def work(session):
        return [await session.call(good(identifier)) for identifier in ("a", "b")]

    first, second = use(toolbox, case, work)
    assert (first.call_id, second.call_id) == ("a", "b")
    assert first.status is ToolStatus.OK
    assert first.text == second.text
    assert CASES[case].keeps_state or first.info == second.info
    assert json.loads(json.dumps(first.info)) == first.info


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wrong", BAD, ids=range(len(BAD)))
def test_wrong_arguments_are_a_result(toolbox, good, case, wrong):
    async def work(session):
        return await session.call(ToolCall("c", CASES[case].name, wrong)), await session.call(good())

    refused, after = use(toolbox, case, work)
    assert refused.status is ToolStatus.MALFORMED
    assert refused.text.strip()
    assert after.status is ToolStatus.OK


@pytest.mark.parametrize("case", CASES)
def test_text_that_is_odd_is_a_result(toolbox, good, case):
    texts = ["", " ", "\x00", "\ud800", "</result>", '"', "(" * 2000, "x" * 100_000]

    async def work(session):
        key = next(iter(CASES[case].good))
        return [await session.call(ToolCall("c", CASES[case].name, {key: text})) for text in texts]

    for result in use(toolbox, case, work):
        assert isinstance(result.status, ToolStatus)
        assert isinstance(result.text, str)


@pytest.mark.parametrize("case", CASES)
def test_a_fork_answers_alike_and_outlives_its_parent(toolbox, good, case):
    async def work(session):
        before = await session.call(good())
        fork = await session.fork()
        await session.close()
        await session.close()
        after = await fork.call(good())
        await fork.close()
        return before, after

    before, after = use(toolbox, case, work)
    assert toolbox.environment.members[CASES[case].name].spec.forks
    assert (before.status, before.text) == (after.status, after.text)
    assert CASES[case].keeps_state or before == after


@pytest.mark.parametrize("case", CASES)
def test_a_cancelled_call_costs_nobody_else(toolbox, good, case):
    async def work(session):
        cancelled = asyncio.ensure_future(session.call(good()))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        return await session.call(good())

    assert use(toolbox, case, work).status is ToolStatus.OK
