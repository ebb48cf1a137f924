"""Tools named by file and function."""

import asyncio
import hashlib
import sys

import pytest

from ramify.core.errors import ConfigError
from ramify.core.messages import Message, Problem, ToolCall
from ramify.tools.configs import OwnToolConfig
from ramify.tools.functions import load_tool

PROBLEM = Problem("p", (Message.of("user", "?"),), ())
FILE = '''
from __future__ import annotations
from dataclasses import dataclass

seen = []

@dataclass
class Range:
    low: int
    high: int

def lookup(key: str, within: Range | None = None, table: dict[str, int] = {}) -> int | None:
    """Looks a key up."""
    seen.append(key)
    found = table.get(key)
    return found if within is None or found is None or within.low <= found <= within.high else None

def count() -> int:
    """Counts what was looked up."""
    return len(seen)
'''


def ask(tool, arguments):
    async def main():
        return await (await tool.open(PROBLEM)).call(ToolCall("c", tool.spec.name, arguments))

    return asyncio.run(main())


def write(tmp_path, text, name="my_tools.py"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(path, function, args=None, **settings):
    return load_tool(OwnToolConfig(path=path, function=function, args=args or {}, **settings))


def test_a_function_of_a_file(tmp_path):
    path = write(tmp_path, FILE)
    loaded = load(path, "lookup", {"table": {"a": 3}}, timeout_seconds=2.0)
    assert (loaded.path, loaded.sha256) == (path, hashlib.sha256(path.read_bytes()).hexdigest())
    assert (loaded.tool.spec.name, loaded.tool.spec.timeout_seconds) == ("lookup", 2.0)
    assert list(loaded.tool.spec.parameters["properties"]) == ["key", "within"]
    assert ask(loaded.tool, {"key": "a"}).text == "3"
    assert ask(loaded.tool, {"key": "a", "within": {"low": 4, "high": 5}}).text == "lookup returned nothing."
    assert "my_tools" not in sys.modules
    assert [file.name for file in tmp_path.iterdir()] == ["my_tools.py"]


def test_two_tools_of_a_file_share_it_and_a_changed_file_is_another(tmp_path):
    path = write(tmp_path, FILE)
    tools = [load(path, name).tool for name in ("lookup", "count")]
    ask(tools[0], {"key": "a"})
    assert ask(tools[1], {}).text == "1"
    changed = load(write(tmp_path, FILE + "\n"), "count", name="n").tool
    assert (changed.spec.name, ask(changed, {}).text) == ("n", "0")


@pytest.mark.parametrize(
    ("text", "function", "args", "told"),
    [
        (None, "f", {}, ": expected a Python file: No such file or directory"),
        ("def f(:\n", "f", {}, ", line 1: not Python: invalid syntax"),
        (b"\xff\xfe", "f", {}, ", line 1: not Python: (unicode error)"),
        ("a\0b", "f", {}, ": not Python: source code string cannot contain null bytes"),
        (
            "x = 1\n\nraise ValueError('two\\nlines')",
            "f",
            {},
            ", line 3: running it failed: ValueError: two lines",
        ),
        ("import no_such_module", "f", {}, ", line 1: running it failed: ModuleNotFoundError: No module"),
        ("import sys\nsys.exit(3)", "f", {}, ", line 2: running it failed: SystemExit: 3"),
        ("", "f", {}, ": no function or class 'f'. It has no function or class of its own."),
        (FILE, "look", {}, ": no function or class 'look'. It has Range, count, lookup."),
        (FILE, "seen", {}, ": no function or class 'seen'. It has Range, count, lookup."),
        (FILE, "count", {"x": 1}, ": count: args: no parameter 'x'. It takes no parameters."),
        (FILE, "lookup", {"table": 3}, ": lookup: args: table: Input should be a valid dictionary"),
        ("def f(a):\n    'F.'", "f", {}, ": f: parameter 'a' has no type hint"),
    ],
)
def test_mistakes_are_one_line_that_names_the_file(tmp_path, text, function, args, told):
    path = tmp_path / "my_tools.py"
    if text is not None:
        write(tmp_path, text)
    before = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        load(path, function, args)
    assert str(caught.value).startswith(f"{path}{told}")
    assert "\n" not in str(caught.value)
    if "running it failed" in told:
        assert not [name for name in set(sys.modules) - before if name.startswith("_ramify")]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="expected a Python file: Is a directory"):
        load(tmp_path, "f")
