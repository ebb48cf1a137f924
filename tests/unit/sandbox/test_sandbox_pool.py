"""Many calls at once, cancelling, dying zygotes, cleaning up, and refusing to start."""

import asyncio
import os
import signal
import tempfile

import pytest

from processes import descendants, is_running, wait_until
from ramify.sandbox.jail import Limits
from ramify.sandbox.levels import detect_level
from ramify.sandbox.pool import open_sandbox
from sandbox_levels import REACHED, at_levels


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The folder that zygotes make theirs in."""
    tmp_path.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


needs_zygote = pytest.mark.skipif(1 not in REACHED, reason="level 1 is out of reach here")
levels = pytest.mark.parametrize("level", at_levels(REACHED))


def test_the_highest_level_within_bounds_is_taken():
    assert open_sandbox(0).level == detect_level() == max(REACHED)
    for level in REACHED:
        assert open_sandbox(level, level).level == level


@needs_zygote
def test_many_calls_with_large_outputs_and_programs():
    async def main():
        sandbox = open_sandbox(1)
        programs = [f"x = '{'y' * 100_000}'\nprint(x[:{i} * 600])" for i in range(80)]
        results = await asyncio.gather(*(sandbox.run(program, 30) for program in programs))
        await sandbox.close()
        return results

    assert [len(result.stdout) - 1 for result in asyncio.run(main())] == [i * 600 for i in range(80)]


async def until_started(count: int, before: set[int]) -> None:
    """Wait until so many processes have been added."""
    while len(descendants() - before) < count:
        await asyncio.sleep(0.01)


@levels
def test_cancelling_kills_the_program_and_frees_its_place(level, base):
    before = descendants()

    async def main():
        sandbox = open_sandbox(level, level)
        for _ in range(5):
            await sandbox.run("1", 30)
            idle = descendants()
            call = asyncio.create_task(sandbox.run("open('started', 'w').close()\nwhile True: pass", 60))
            await until_started(1 if level else 2, idle)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.to_thread(wait_until, lambda idle=idle: descendants() <= idle)
        after = await sandbox.run("import os\nos.listdir('.')", 30)
        await asyncio.to_thread(wait_until, lambda: not list(base.glob("*/*/*")))
        await sandbox.close()
        return after.stdout

    assert asyncio.run(main()) == "[]\n"
    wait_until(lambda: descendants() <= before)


@levels
@pytest.mark.parametrize("pauses", [1, 2, 3, 6])
def test_a_call_that_is_cancelled_before_it_starts_costs_nothing(level, pauses, base):
    async def main():
        sandbox = open_sandbox(level, level)
        calls = [asyncio.create_task(sandbox.run("print(1)", 60)) for _ in range(20)]
        for _ in range(pauses):
            await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        await sandbox.close()
        return results

    results = asyncio.run(main())
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert [result.stdout for result in results[1::2]] == ["1\n"] * 10
    assert list(base.iterdir()) == []


@levels
def test_closing_leaves_neither_process_nor_file(level, base):
    before = descendants()

    async def main():
        sandbox = open_sandbox(level, level)
        call = asyncio.create_task(sandbox.run("open('a', 'w').close()\nwhile True: pass", 60))
        await until_started(2, before)
        await sandbox.close()
        result = await call
        await sandbox.close()
        return result

    assert asyncio.run(main()).status == "killed"
    wait_until(lambda: descendants() <= before)
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("level", at_levels(level for level in REACHED if level > 0))
def test_a_dead_zygote_costs_the_calls_in_flight_and_is_replaced(level, base):
    before = descendants()

    async def main():
        sandbox = open_sandbox(level, level)
        await sandbox.run("1", 30)
        idle = descendants()
        code = "open('started', 'w').close()\nwhile True: pass"
        calls = [asyncio.create_task(sandbox.run(code, 60)) for _ in range(2)]
        await until_started(2, idle)
        programs = descendants() - idle
        (zygote,) = sandbox._live
        os.kill(zygote._process.pid, signal.SIGKILL)
        dead = await asyncio.gather(*calls)
        after = await sandbox.run("'alive'", 30)
        await asyncio.to_thread(wait_until, lambda: len(list(base.glob("*"))) <= 1)
        await sandbox.close()
        return dead, after, programs

    dead, after, programs = asyncio.run(main())
    assert [result.status for result in dead] == ["killed", "killed"]
    assert dead[0].stderr == "killed: the sandbox process died"
    assert after.stdout == "alive\n"
    wait_until(lambda: descendants() <= before)
    # Orphans are no descendants.
    wait_until(lambda: not any(map(is_running, programs)))


@levels
def test_folders_of_programs_are_emptied(level, base):
    async def main():
        sandbox = open_sandbox(level, level)
        code = """
import os
os.symlink('/usr', 'link')
os.mkdir('locked')
open('locked/file', 'w').close()
os.mkdir('closed', 0)
for _ in range(90):
    os.mkdir('d' * 50)
    os.chdir('d' * 50)
    open('f' * 200, 'w').close()"""
        results = await asyncio.gather(*(sandbox.run(code, 30) for _ in range(8)))
        listings = await asyncio.gather(*(sandbox.run("import os\nos.listdir('.')", 30) for _ in range(8)))
        await asyncio.to_thread(wait_until, lambda: not list(base.glob("*/*/*")))
        await sandbox.close()
        return [result.status for result in results], [result.stdout for result in listings]

    assert asyncio.run(main()) == (["ok"] * 8, ["[]\n"] * 8)


@levels
def test_folders_with_any_names_are_emptied_and_cost_other_programs_nothing(level, base):
    hostile = """
import os
for number in range(1, 9):
    for name in (chr(1) + str(number), str(number)):
        os.makedirs(name + '/a/b')
        open(name + '/a/b/f', 'w').close()"""

    async def main():
        sandbox = open_sandbox(level, level)
        programs = [
            code for i in range(12) for code in (hostile, f"import time\ntime.sleep(0.1)\nprint({i})")
        ]
        results = await asyncio.gather(*(sandbox.run(program, 30) for program in programs))
        await asyncio.to_thread(wait_until, lambda: not list(base.glob("*/*/*")))
        shared = len(sandbox._live)
        await sandbox.close()
        return [result.status for result in results], [result.stdout for result in results[1::2]], shared

    assert asyncio.run(main()) == (["ok"] * 24, [f"{i}\n" for i in range(12)], 1 if level else 0)


@needs_zygote
def test_calls_go_on_when_folders_are_lost():
    hostile = "import os\nos.rmdir(os.getcwd())"  # only level 1 lets it

    async def main():
        sandbox = open_sandbox(1, 1)
        programs = [
            code for i in range(12) for code in (hostile, f"import time\ntime.sleep(0.1)\nprint({i})")
        ]
        results = await asyncio.gather(*(sandbox.run(program, 30) for program in programs))
        after = await sandbox.run("'served'", 30)
        num_zygotes = len(sandbox._live)
        await sandbox.close()
        return results, after.stdout, num_zygotes

    results, after, num_zygotes = asyncio.run(main())
    assert [result.status for result in results] == ["ok"] * 24
    assert [result.stdout for result in results[1::2]] == [f"{i}\n" for i in range(12)]
    assert (after, num_zygotes) == ("served\n", 1)


@pytest.mark.parametrize("level", at_levels(level for level in REACHED if level >= 3))
def test_the_size_of_all_files_is_limited(level):
    async def main():
        sandbox = open_sandbox(level, level, Limits(folder_bytes=1 << 20))
        code = """
try:
    for number in range(100):
        with open(str(number), "wb") as file:
            file.write(bytes(1 << 16))
except OSError as error:
    print(number, error.strerror)"""
        first = await sandbox.run(code, 30)
        after = await sandbox.run(code, 30)
        await sandbox.close()
        return first.stdout, after.stdout

    assert asyncio.run(main()) == ("16 No space left on device\n",) * 2


@pytest.mark.parametrize("level", at_levels(level for level in REACHED if level >= 3))
def test_the_number_of_files_is_limited(level):
    code = """
try:
    for number in range(5000):
        open(f"{number:0200}", "w").close()
except OSError as error:
    print(number, error.strerror)"""

    async def main():
        sandbox = open_sandbox(level, level)
        results = [await sandbox.run(code, 30) for _ in range(2)]
        await sandbox.close()
        return [result.stdout for result in results]

    assert asyncio.run(main()) == ["4095 No space left on device\n"] * 2


def test_limits_are_those_given():
    async def main():
        sandbox = open_sandbox(0, limits=Limits(memory_bytes=128 << 20, output_bytes=10))
        results = [await sandbox.run(code, 30) for code in ("print('x' * 20)", "len(bytearray(200 << 20))")]
        await sandbox.close()
        return results

    cut, memory = asyncio.run(main())
    assert cut.stdout == "x" * 10 + "\n[output cut at 10 bytes]"
    assert memory.stderr == "[output cut at 10 bytes]\nmoryError\n"
