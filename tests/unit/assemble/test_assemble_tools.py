"""Tools at the edges of what a recipe may ask of them."""

import asyncio

import pytest

from ramify.assemble.tools import build_tools
from ramify.config.schema_parts import SandboxSection, ToolsSection
from ramify.core.errors import ConfigError
from ramify.core.messages import Message, Problem, ToolCall, ToolStatus


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
