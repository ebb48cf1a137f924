"""Functions of the user's own as tools: how calls run and what they raise. Settings that cannot hold: one line at start."""

import asyncio
import contextvars
import functools
import hashlib
import sys
import threading

import pytest

from ramify.core.errors import ConfigError, MachineError
from ramify.core.messages import ToolCall, ToolStatus
from ramify.tools.configs import OwnToolConfig
from ramify.tools.functions import load_tool, tool_from
from scripted_agents import call_tool, problem


async def fetch(query: str) -> str:
    """Fetches."""
    await asyncio.sleep(0)
    return f"found {query}"


def test_the_settings_are_in_the_spec():
    spec = tool_from(fetch, name="web", timeout_seconds=2.5, hedge_seconds=1.0, in_prompt=False).spec
    assert (spec.name, spec.timeout_seconds, spec.hedge_seconds, spec.in_prompt) == ("web", 2.5, 1.0, False)


def test_a_function_that_blocks_sees_the_context_of_its_call():
    who = contextvars.ContextVar("who", default="nobody")

    def see() -> str:
        """Sees."""
        return who.get()

    async def run():
        who.set("the caller")
        return await (await tool_from(see).open(problem())).call(ToolCall("c", "see", {}))

    assert asyncio.run(run()).text == "the caller"


def test_a_coroutine_function_runs_in_the_loop():
    result = call_tool(tool_from(fetch), {"query": "x"})
    assert (result.status, result.text) == (ToolStatus.OK, "found x")


class BrokenError(Exception):
    def __str__(self):
        raise ValueError("no message")


def raising(error, is_async):
    def fail():
        """Fails."""
        raise error

    async def fail_later():
        """Fails."""
        raise error

    return tool_from(fail_later if is_async else fail, name="fail")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n lines"), "fail failed: ValueError: two lines"),
        (KeyError("a"), "fail failed: KeyError: 'a'"),
        (StopIteration(), "fail failed: StopIteration"),
        (BrokenError(), "fail failed: BrokenError"),
        (RuntimeError("x" * 1000), "fail failed: RuntimeError: " + "x" * 473),
    ],
)
def test_what_is_raised_is_told_in_one_line(error, text, is_async):
    # A coroutine that raises it ends in a RuntimeError by Python's own rules.
    if is_async and isinstance(error, StopIteration):
        text = "fail failed: RuntimeError: coroutine raised StopIteration"
    result = call_tool(raising(error, is_async), {})
    assert (result.status, result.text) == (ToolStatus.ERROR, text)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_of_ours_and_an_exit_are_raised(is_async):
    for error in (MachineError("no disk"), SystemExit(3)):
        tool = raising(error, is_async)

        async def run(tool=tool, error=error):
            with pytest.raises(type(error)) as caught:
                await (await tool.open(problem())).call(ToolCall("c", "fail", {}))
            return caught.value

        assert asyncio.run(run()) is error


class Caller:
    """Not this."""

    def __call__(self, n: int) -> int:
        """Adds one."""
        return n + 1

    async def later(self, n: int) -> int:
        """Adds two."""
        return n + 2


@pytest.mark.parametrize(
    ("source", "name", "text"),
    [
        (Caller(), "caller", "2"),
        (Caller().later, "later", "3"),
        (functools.partial(functools.partial(Caller().later), n=4), "later", "6"),
        (len, "size", None),
    ],
)
def test_anything_that_can_be_called(source, name, text):
    if text is None:
        with pytest.raises(ConfigError, match="call passes arguments by name"):
            tool_from(source, name=name)
        return
    tool = tool_from(source)
    assert (tool.spec.name, tool.spec.description[:5]) == (name, "Adds ")
    assert call_tool(tool, {} if text == "6" else {"n": 1}).text == text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout_seconds": 0.0}, "fetch: timeout_seconds: expected a finite number above 0"),
        ({"hedge_seconds": float("nan")}, "fetch: hedge_seconds: expected a finite number above 0"),
        ({"max_threads": 0}, "fetch: max_threads: expected at least 1"),
    ],
)
def test_settings_that_cannot_hold_are_refused_at_start(settings, message):
    with pytest.raises(ConfigError, match=message):
        tool_from(fetch, **settings)


def test_threads_are_bounded():
    running, most, lock = 0, 0, threading.Lock()
    meet = threading.Barrier(4)

    def work(i: int) -> int:
        """Works."""
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait(10)
        with lock:
            running -= 1
        return i

    tool = tool_from(work, max_threads=4)

    async def main():
        session = await tool.open(problem())
        calls = (session.call(ToolCall(str(i), "work", {"i": i})) for i in range(40))
        return [result.text for result in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [str(i) for i in range(40)]
    assert most == 4


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


def write(tmp_path, text, name="my_tools.py"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(path, function, args=None, **settings):
    return load_tool(OwnToolConfig(path=path, function=function, args=args or {}, **settings))


def test_a_function_of_a_file(tmp_path):
    path = write(tmp_path, FILE)
    tool, sha256 = load(path, "lookup", {"table": {"a": 3}}, timeout_seconds=2.0)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (tool.spec.name, tool.spec.timeout_seconds) == ("lookup", 2.0)
    assert list(tool.spec.parameters["properties"]) == ["key", "within"]
    assert call_tool(tool, {"key": "a"}).text == "3"
    assert call_tool(tool, {"key": "a", "within": {"low": 4, "high": 5}}).text == "lookup returned nothing."
    assert "my_tools" not in sys.modules
    assert [file.name for file in tmp_path.iterdir()] == ["my_tools.py"]


def test_two_tools_of_a_file_share_it_and_a_changed_file_is_another(tmp_path):
    path = write(tmp_path, FILE)
    tools = [load(path, name)[0] for name in ("lookup", "count")]
    call_tool(tools[0], {"key": "a"})
    assert call_tool(tools[1], {}).text == "1"
    changed = load(write(tmp_path, FILE + "\n"), "count", name="n")[0]
    assert (changed.spec.name, call_tool(changed, {}).text) == ("n", "0")


@pytest.mark.parametrize(
    ("text", "function", "args", "message"),
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
def test_mistakes_are_one_line_that_names_the_file(tmp_path, text, function, args, message):
    path = tmp_path / "my_tools.py"
    if text is not None:
        write(tmp_path, text)
    before = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        load(path, function, args)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)
    if "running it failed" in message:
        assert not [name for name in set(sys.modules) - before if name.startswith("_ramify")]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="expected a Python file: Is a directory"):
        load(tmp_path, "f")
