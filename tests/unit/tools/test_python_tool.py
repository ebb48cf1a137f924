"""The python tool over a real sandbox of whatever level this machine reaches, with and without a state that is kept."""

import asyncio
from dataclasses import dataclass

import pytest

from ramify.core.messages import Message, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import SandboxResult, SandboxStatus
from ramify.sandbox.jail import Limits
from ramify.sandbox.launch import installed
from ramify.sandbox.pool import ProcessSandbox, open_sandbox
from ramify.tools.configs import PythonConfig
from ramify.tools.python import MARGIN_SECONDS, PythonTool

PROBLEM = Problem("p", (Message.of("user", "?"),), ("1",))


@dataclass(frozen=True)
class Bench:
    runner: asyncio.Runner
    sandbox: ProcessSandbox

    def call(self, code: object, **settings) -> ToolResult:
        return self.send(ToolCall("c", "python", {"code": code}), **settings)

    def send(self, call: ToolCall, **settings) -> ToolResult:
        async def main():
            config = PythonConfig(**{"max_output_chars": 8192, **settings})
            session = await PythonTool(self.sandbox, config).open(PROBLEM)
            result = await session.call(call)
            await session.close()
            return result

        return self.runner.run(main())


@pytest.fixture(scope="module")
def bench():
    with asyncio.Runner() as runner:
        sandbox = open_sandbox(0, limits=Limits(output_bytes=4096))
        yield Bench(runner, sandbox)
        runner.run(sandbox.close())


def test_the_spec_names_one_argument(bench):
    spec = PythonTool(bench.sandbox, PythonConfig(timeout_seconds=7)).spec
    assert (spec.name, spec.forks, spec.timeout_seconds) == ("python", True, 7 + MARGIN_SECONDS)
    assert list(spec.parameters["properties"]) == spec.parameters["required"] == ["code"]


def test_output_is_the_result(bench):
    assert bench.call("print(49 > 28)") == ToolResult(
        "c", ToolStatus.OK, "True", {"sandbox_level": bench.sandbox.level}
    )
    assert bench.call("x = 6\nx * 7").text == "42"


def test_printing_nothing_is_empty_and_not_an_error(bench):
    for code in ("x = 1", "", "print()", "None"):
        result = bench.call(code)
        assert (result.status, result.text) == (ToolStatus.EMPTY, "The program printed nothing.")


def test_an_error_shows_the_end_of_the_traceback(bench):
    result = bench.call("x = 1\n1 / 0")
    assert result.status is ToolStatus.ERROR
    assert result.text.startswith('Traceback (most recent call last):\n  File "<snippet>", line 2')
    assert result.text.endswith("ZeroDivisionError: division by zero")
    deep = bench.call("def f(n):\n    return f(n - 1) if n else 1 / 0\n" + "f(200)")
    assert deep.text.endswith("ZeroDivisionError: division by zero")
    assert len(deep.text.splitlines()) <= 12


@pytest.mark.parametrize(
    "code",
    [
        "```python\nprint(6 * 7)\n```",
        "```\nprint(6 * 7)\n```\n",
        "\n~~~py\nx = 6\n\nx * 7\n~~~",
        "```python3\r\nprint(6 * 7)\r\n```",
        "```Python print(6 * 7)```",
        "```python\nprint(6 * 7)",
    ],
)
def test_a_program_in_a_fence_runs(bench, code):
    assert (bench.call(code).status, bench.call(code).text) == (ToolStatus.OK, "42")


@pytest.mark.parametrize(
    "code", ["Here it is:\n```python\n1\n```", "```bash\nls\n```", "```python\n1\n```\nDone.", "```1```"]
)
def test_a_fence_that_is_not_removed_is_named(bench, code):
    result = bench.call(code)
    assert result.status is ToolStatus.ERROR
    assert "SyntaxError" in result.text
    assert "Markdown fences" in result.text.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("!pip install numpy\nprint(1)", "commands of a notebook"),
        ("%matplotlib inline\nprint(1)", "commands of a notebook"),
        ("%%time\nprint(1)", "commands of a notebook"),
        (">>> x = 6\n>>> x * 7", "prompts of a console"),
        ("x = (", ""),
    ],
)
def test_lines_that_are_no_python_are_named(bench, code, note):
    result = bench.call(code)
    assert result.status is ToolStatus.ERROR
    line = result.text.splitlines()[-1]
    assert line.startswith("SyntaxError")
    assert note in line
    assert ("Send the program" in line) == bool(note)


def test_fences_inside_a_program_are_its_own(bench):
    assert bench.call('print("""```\nx\n```""")').text == "```\nx\n```"
    assert "Markdown" not in bench.call('x = """\n```\n"""\n(').text


def test_a_missing_module_is_answered_with_the_packages(bench):
    result = bench.call("import no_such_package.part")
    assert result.status is ToolStatus.ERROR
    line = result.text.splitlines()[-1]
    assert line.startswith(
        "ModuleNotFoundError: No module named 'no_such_package'. The tool has the standard library"
    )
    assert all(name in line for name in installed())
    assert "The tool has" not in bench.call("import os.no_such_part").text
    assert "The tool has" not in bench.call("raise ValueError(\"No module named 'x'\")").text


def test_what_was_printed_before_an_error_is_shown_too(bench):
    result = bench.call("print('total', 42)\n1 / 0")
    assert result.status is ToolStatus.ERROR
    assert result.text.startswith("total 42\nTraceback (most recent call last):\n")
    assert result.text.endswith("ZeroDivisionError: division by zero")
    long = bench.call("print('x' * 60000)\n1 / 0").text
    assert "[output cut after 4096 characters]\nTraceback" in long
    assert long.endswith("ZeroDivisionError: division by zero")


def test_a_silent_failure_has_a_text(bench):
    result = bench.call("import sys\nsys.exit(3)")
    assert (result.status, result.text) == (ToolStatus.ERROR, "The program failed without a message.")


def test_a_killed_program_says_why(bench):
    result = bench.call("while True: print('x' * 1000)")
    assert result.status is ToolStatus.ERROR
    assert result.text.startswith("x" * 1000)
    assert result.text.endswith("\nkilled: more than 65536 bytes of output")


def test_the_deadline_is_a_result_without_partial_output(bench):
    result = bench.call("print('a', flush=True)\nwhile True: pass", timeout_seconds=0.2)
    assert result.status is ToolStatus.TIMEOUT
    assert result.text == "The program was stopped: it ran longer than 0.2 seconds."
    assert result.info == {"sandbox_level": bench.sandbox.level}


def test_long_output_is_cut_with_a_note(bench):
    assert bench.call("'x' * 10", max_output_chars=10).text == "x" * 10
    assert bench.call("'x' * 11", max_output_chars=10).text == "x" * 10 + "\n[output cut after 10 characters]"
    error = bench.call("raise ValueError('y' * 50)", max_output_chars=10)
    assert error.text == "[output cut to its last 10 characters]\n" + "y" * 10
    assert bench.call("'x' * 5000").text == "x" * 4096 + "\n[output cut at 4096 bytes]"


def test_addresses_do_not_reach_the_model(bench):
    assert bench.call("object()").text == "<object object at 0x...>"
    assert "object at 0x..." in bench.call("raise ValueError(object())").text
    assert bench.call("hex(255)").text == "0xff"


def test_calls_without_code_are_malformed(bench):
    for call in (
        ToolCall("c", "python", {}),
        ToolCall("c", "python", {"code": 5}),
        ToolCall("c", "python", {"code": "1"}, malformed="no closing tag"),
    ):
        result = bench.send(call)
        assert result.status is ToolStatus.MALFORMED
        assert result.call_id == "c"
    assert "no closing tag" in result.text


def play(bench, work, **settings):
    """Run `work(session)`, where the session's programs are called as functions."""
    runner, sandbox = bench.runner, bench.sandbox

    async def main():
        session = await PythonTool(sandbox, PythonConfig(stateful=True, **settings)).open(PROBLEM)
        return await work(session)

    return runner.run(main())


async def run(session, code):
    return await session.call(ToolCall("c", "python", {"code": code}))


def test_a_state_is_kept_and_earlier_output_is_not_shown_again(bench):
    async def work(session):
        await run(session, "import math\nx = 40\nprint('once')")
        await run(session, "open('notes', 'w').write('kept')")
        return await run(session, "print(x + 2, math.floor(2.5), open('notes').read())")

    result = play(bench, work)
    assert (result.status, result.text) == (ToolStatus.OK, "42 2 kept")
    assert result.info == {"sandbox_level": bench.sandbox.level, "state": "replayed", "cells": 2}


def test_programs_that_failed_leave_nothing(bench):
    async def work(session):
        await run(session, "x = 1")
        await run(session, "x = 2\nopen('half', 'w')\n1 / 0")
        await run(session, "x = 3\nwhile True: pass")
        await session.call(ToolCall("c", "python", {}))
        return await run(session, "import os\nprint(x, os.listdir('.'))")

    result = play(bench, work, timeout_seconds=4.0)
    assert (result.text, result.info["cells"]) == ("1 []", 1)


def test_a_fork_equals_its_parent_and_then_goes_its_own_way(bench):
    async def work(session):
        await run(session, "import random\nx = [random.random()]")
        fork = await session.fork()
        ours = await run(session, "x.append(random.random())\nx")
        theirs = await run(fork, "x.append(random.random())\nx")
        await run(fork, "x.append('fork')")
        await session.close()
        await session.close()
        return ours, theirs, await run(fork, "x[2:]")

    ours, theirs, last = play(bench, work)
    assert ours == theirs
    assert last.text == "['fork']"


def test_calls_of_one_turn_run_in_their_order(bench):
    async def work(session):
        codes = ("x = [0]", "x.append(1)", "x.append(2)", "print(x)")
        return await asyncio.gather(*(run(session, code) for code in codes))

    assert play(bench, work)[-1].text == "[0, 1, 2]"


def test_a_cancelled_call_leaves_nothing(bench):
    async def work(session):
        await run(session, "x = 1")
        cancelled = asyncio.ensure_future(run(session, "x = 2\nimport time\ntime.sleep(60)"))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        return await run(session, "x")

    assert play(bench, work).text == "1"


def test_a_program_that_ends_the_process_cannot_silence_the_calls_after_it(bench):
    async def work(session):
        await run(session, "x = 1")
        await run(session, "import os\nos._exit(0)")
        await run(session, "print('never')")
        return await run(session, "x")

    result = play(bench, work)
    assert (result.status, result.text, result.info["cells"]) == (ToolStatus.OK, "1", 1)


FAILS_THE_SECOND_TIME = {
    "error": ("if SECOND: raise ValueError('changed')", "ValueError: changed"),
    "exit": ("import os\nif SECOND: os._exit(0)", "ended the process"),
    "status": ("if SECOND: raise SystemExit(3)", "failed without a message"),
    "killed": ("import ctypes\nif SECOND: ctypes.string_at(0)", "killed by SIGSEGV"),
    "endless": ("while SECOND: pass", "ran longer than 4 seconds"),
}


@pytest.mark.parametrize("way", FAILS_THE_SECOND_TIME)
def test_a_program_that_cannot_be_run_again_costs_one_call(bench, way):
    code, reason = FAILS_THE_SECOND_TIME[way]
    # The output of a program that is run again goes to a device.
    first = f"import os, stat\nSECOND = stat.S_ISCHR(os.fstat(1).st_mode)\ny = 1\n{code}"

    async def work(session):
        return [
            await run(session, code)
            for code in ("x = 1", first, "x += 1", "print('never')", "x", "'y' in globals()")
        ]

    *before, never, after, last = play(bench, work, timeout_seconds=4.0)
    assert [result.status for result in before] == [ToolStatus.EMPTY, ToolStatus.EMPTY, ToolStatus.ERROR]
    assert "earlier program 2" in before[2].text
    assert reason in before[2].text
    assert (before[2].info["state"], before[2].info["failed_cell"]) == ("reset", 1)
    assert [result.text for result in (never, after, last)] == ["never", "1", "False"]


def test_the_model_is_told_what_is_kept(bench):
    assert "Each call starts afresh." in PythonTool(bench.sandbox, PythonConfig()).spec.description
    assert (
        "of earlier calls are there"
        in PythonTool(bench.sandbox, PythonConfig(stateful=True)).spec.description
    )


def test_programs_behind_one_that_is_forgotten_are_run_again():
    """A program that is run again may fail at any time, for example when all together take too long."""
    replayed = []

    class Forgetful:
        async def run(self, code, timeout_seconds, cells=()):
            replayed.append(cells)
            if code == "z":
                return SandboxResult(SandboxStatus.ERROR, "", "no", 2, failed_cell=1)
            return SandboxResult(SandboxStatus.OK, "", "", 2)

    async def main():
        session = await PythonTool(Forgetful(), PythonConfig(stateful=True)).open(PROBLEM)
        for code in ("a", "b", "c", "z", "d"):
            await run(session, code)

    asyncio.run(main())
    assert replayed[-2:] == [("a", "b", "c"), ("a", "c")]


def test_hostile_code_never_raises_into_the_loop(bench):
    for code in (
        "\0",
        "\ud800",
        "(" * 300,
        "print('\\ud800')",
        "class E(BaseException): pass\nraise E",
        "import os\nos.abort()",
    ):
        assert bench.call(code).status is ToolStatus.ERROR
