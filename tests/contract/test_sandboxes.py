"""Laws of every sandbox: each level that this machine reaches, and a remote one."""

import asyncio

import pytest

from loopback import serve
from ramify.core.protocols import SandboxStatus
from ramify.net.client import HttpClient, HttpSettings
from ramify.sandbox.levels import why_not
from ramify.sandbox.pool import open_sandbox
from ramify.sandbox.snippet import NOT_REPLAYED
from ramify.tools.python import RemoteSandbox
from sandbox_levels import ALL, at_levels
from sandbox_service import run_code

KINDS = [*at_levels(ALL), pytest.param("remote", marks=pytest.mark.integration)]


@pytest.fixture(scope="module")
def service():
    with serve(run_code) as here:
        yield here


@pytest.fixture(params=KINDS, scope="module")
def box(request):
    """A sandbox with its event loop, as `box(work)`."""
    kind = request.param
    if kind != "remote" and (reason := why_not(kind)) is not None:
        pytest.skip(reason)
    with asyncio.Runner() as runner:

        async def make():
            if kind == "remote":
                client = HttpClient("sandbox", HttpSettings(timeout_seconds=60))
                return RemoteSandbox(
                    client, base_url=request.getfixturevalue("service").url, declared_level=3
                )
            return open_sandbox(kind, kind)

        sandbox = runner.run(make())
        yield lambda work: runner.run(work(sandbox))
        runner.run(sandbox.close())
        runner.run(sandbox.close())


def run(box, code, timeout_seconds=20.0, cells=()):
    return box(lambda sandbox: sandbox.run(code, timeout_seconds, cells))


def test_output_and_the_value_of_a_last_expression_are_the_result(box):
    result = run(box, "print('a')\n6 * 7")
    assert (result.status, result.stdout, result.stderr) == (SandboxStatus.OK, "a\n42\n", "")
    assert run(box, "'\u00e9\U0001f600'").stdout == "\u00e9\U0001f600\n"


def test_the_level_is_recorded_with_every_call(box):
    async def both(sandbox):
        return sandbox.level, await sandbox.run("1", 20.0), await sandbox.run("1 / 0", 20.0)

    level, *results = box(both)
    assert [result.level for result in results] == [level] * 2
    assert level in ALL


def test_an_error_shows_the_lines_of_the_program_alone(box):
    result = run(box, "def f():\n    return 1 / 0\nf()")
    assert result.status is SandboxStatus.ERROR
    assert result.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert result.stderr.count("File ") == result.stderr.count('File "<snippet>"') == 2
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_program_that_does_not_end_runs_out_of_time(box):
    assert run(box, "while True: pass", 1.0).status is SandboxStatus.TIMEOUT


def test_a_program_that_kills_itself_is_killed(box):
    assert run(box, "import ctypes\nctypes.string_at(0)").status is SandboxStatus.KILLED


def test_each_program_starts_afresh(box):
    run(box, "import builtins, json\nbuiltins.left = json.left = open('left', 'w').write('x')")
    code = "import builtins, json, os\n[hasattr(builtins, 'left'), hasattr(json, 'left'), os.listdir('.')]"
    assert run(box, code).stdout == "[False, False, []]\n"


def test_equal_programs_have_equal_output(box):
    code = "import random\n[random.random() for _ in range(3)]"
    assert run(box, code) == run(box, code)


def test_cells_restore_the_state_and_their_output_is_dropped(box):
    result = run(box, "print(x + 1)", cells=("x = 41\nprint('said')", "'a value'"))
    assert (result.status, result.stdout) == (SandboxStatus.OK, "42\n")
    failed = run(box, "print(x)", cells=("import os\nos._exit(0)",))
    assert failed.status is SandboxStatus.ERROR
    assert failed.stderr == NOT_REPLAYED


def test_many_at_once_get_their_own_answers(box):
    async def many(sandbox):
        return await asyncio.gather(*(sandbox.run(f"print({i})\n'é' * {i}", 30) for i in range(12)))

    assert [result.stdout for result in box(many)] == [f"{i}\n{'é' * i}\n" for i in range(12)]


def test_odd_text_is_a_result(box):
    for code in ("", "\0", "\ud800", "(" * 5000, "'''"):
        assert run(box, code).status in SandboxStatus


def test_cancelling_costs_nobody_else(box):
    async def work(sandbox):
        cancelled = asyncio.ensure_future(sandbox.run("import time\ntime.sleep(3)", 20.0))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        return await sandbox.run("1", 20.0)

    assert box(work).stdout == "1\n"
