"""Tools at the edges of what a recipe may ask of them."""

import asyncio
import hashlib
from importlib.metadata import version

import pytest

from ramify.assemble.tools import build_tools
from ramify.config.schema_parts import SandboxSection, ToolsSection
from ramify.core.errors import ConfigError
from ramify.core.messages import Message, Problem, ToolCall, ToolStatus
from sandbox_levels import HIGHEST


@pytest.mark.parametrize(
    ("key", "call", "answer"),
    [
        ("search", {"query": "capital"}, "Page 1: Paris is the capital of France."),
        ("python", {"code": "print(6 * 7)"}, "42"),
    ],
)
def test_tools_answer_under_the_largest_settings(tmp_path, key, call, answer):
    corpus = tmp_path / "passages.jsonl"
    corpus.write_text('{"text": "Paris is the capital of France."}\n')
    largest = {
        "search": {"corpus": corpus, "top_k": 2**16, "snippet_chars": 2**31 - 1, "timeout_seconds": 1e6},
        "python": {"max_output_chars": 2**31 - 1, "timeout_seconds": 1e6},
    }

    async def ask():
        toolbox = build_tools(ToolsSection.model_validate({key: largest[key]}), SandboxSection(min_level=0))
        try:
            session = await toolbox.environment.members[key].open(
                Problem("p", (Message.of("user", "?"),), ())
            )
            return await session.call(ToolCall("c", key, call))
        finally:
            await toolbox.close()

    result = asyncio.run(ask())
    assert (result.status, result.text) == (ToolStatus.OK, answer)


def test_a_preamble_and_packages_are_tried_recorded_and_shown_to_the_policy(tmp_path):
    async def run(**python):
        toolbox = build_tools(
            ToolsSection.model_validate({"python": python}), SandboxSection(min_level=HIGHEST)
        )
        try:
            session = await toolbox.environment.members["python"].open(
                Problem("p", (Message.of("user", "?"),), ())
            )
            calls = [ToolCall("c", "python", {"code": code}) for code in ("two + 1", "import torch")]
            return toolbox, [await session.call(call) for call in calls]
        finally:
            await toolbox.close()

    (tmp_path / "start.py").write_text("one = 1\ntwo = 2\n")
    toolbox, (three, missing) = asyncio.run(run(preamble=tmp_path / "start.py", packages=["Jinja2"]))
    assert three.text == "3"
    assert missing.text.endswith(
        "The tool has the standard library, numpy, mpmath, sympy, Jinja2 and MarkupSafe."
    )
    (note,) = toolbox.notes
    assert note.startswith("tool python: preamble of 2 lines, 2 packages of ")
    assert note.endswith(" s to load, once, before programs are forked")
    identity = toolbox.identities["python"]
    assert identity["packages"] == {name: version(name) for name in ("Jinja2", "MarkupSafe")}
    assert toolbox.identities["python.preamble"] == {
        "sha256": hashlib.sha256((tmp_path / "start.py").read_bytes()).hexdigest()
    }
    (tmp_path / "start.py").write_text("import no_such_module")
    with pytest.raises(ConfigError, match=r"tools\.python\.preamble, line 1: ModuleNotFoundError"):
        asyncio.run(run(preamble=tmp_path / "start.py"))


IDLE = [
    (
        {"search": {"provider": "searxng", "url": "http://a", "hedge_seconds": 5.0}, "cache": {"path": "c"}},
        "search.hedge_seconds",
    ),
    (
        {"search": {"provider": "searxng", "url": "http://a", "page_labels": False}, "browser": {}},
        "search.page_labels",
    ),
    ({"search": {"provider": "searxng", "url": "http://a", "hedge_seconds": 60.0}}, "hedge_seconds"),
    ({"search": {"corpus": "a"}, "browser": {}}, "browser"),
    ({"search": {"corpus": "a"}, "cache": {"path": "c", "mode": "record", "days": 3.0}}, "days"),
    ({"python": {}, "cache": {"path": "c"}}, "cache"),
    (
        {"search": {"provider": "serper"}, "browser": {"source": "jina", "networks": ["10.0.0.0/8"]}},
        "networks",
    ),
    ({"search": {"provider": "serper"}, "browser": {"summary_seconds": 3.0}}, "summary_seconds"),
    ({"own": [{"path": "a.py", "function": "f", "hedge_seconds": 90.0}]}, "hedge_seconds"),
]


@pytest.mark.parametrize(("tables", "key"), IDLE, ids=range(len(IDLE)))
def test_a_key_that_cannot_act_is_refused_by_name(tables, key):
    with pytest.raises(ValueError, match=key):
        ToolsSection.model_validate(tables)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a",
        "a",
        "http://",
        "http://u:p@a",
        "http://:p@a",
        "http://a/?key=1",
        "http://a/#key=1",
        "http://a:99999",
    ],
)
def test_an_address_that_cannot_be_asked_or_holds_a_key(url):
    with pytest.raises(ValueError, match="expected an address"):
        ToolsSection.model_validate({"search": {"provider": "searxng", "url": url}})


@pytest.mark.parametrize("network", ["here", "10.1", "10.1.0.1/16"])
def test_a_broken_network(network):
    tables = {"search": {"provider": "serper"}, "browser": {"networks": [network]}}
    with pytest.raises(ValueError, match="expected a network such as"):
        ToolsSection.model_validate(tables)


def test_two_tools_of_one_name(tmp_path):
    (tmp_path / "own.py").write_text('def python(code: str) -> str:\n    """Run."""\n    return code\n')
    section = ToolsSection.model_validate(
        {"python": {}, "own": [{"path": tmp_path / "own.py", "function": "python"}]}
    )
    with pytest.raises(ConfigError, match="two tools are called 'python'"):
        build_tools(section, SandboxSection(min_level=0))


def test_a_failure_leaves_no_cassette_locked(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "a"}\n')
    tables = {
        "search": {"corpus": tmp_path / "corpus.jsonl"},
        "cache": {"path": tmp_path / "tape.sqlite", "mode": "record"},
    }
    wrong = ToolsSection.model_validate(tables | {"own": [{"path": tmp_path / "none.py", "function": "f"}]})
    with pytest.raises(ConfigError):
        build_tools(wrong, SandboxSection(min_level=0))
    asyncio.run(build_tools(ToolsSection.model_validate(tables), SandboxSection(min_level=0)).close())
