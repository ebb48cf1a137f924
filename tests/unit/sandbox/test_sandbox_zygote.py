"""The zygote by itself: what it loads, whom it serves, and what ends with a call."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from processes import is_running, wait_until
from ramify.runtime.call_clock import CallClock, set_clock
from ramify.sandbox import frames, launch
from ramify.sandbox.launch import read_answer
from ramify.sandbox.levels import seccomp_program, why_not
from ramify.sandbox.pool import ZygoteProcess
from sandbox_levels import REACHED, at_levels

NOBODY = 65534


def send(process, frame):
    process.stdin.write(frame)
    process.stdin.flush()


def ask(process, frame):
    """Head and body of the answer."""
    send(process, frame)
    head, body = read(process)
    while "status" not in head and "ready" not in head:
        head, body = read(process)
    return head, body


def read(process):
    head_bytes, body_bytes = frames.lengths(process.stdout.read(frames.PREFIX_BYTES))
    return frames.decode(process.stdout.read(head_bytes)), process.stdout.read(body_bytes)


def as_nobody(executable: str) -> dict:
    """Keyword arguments that start a process as nobody, with a check that it can run at all."""
    keywords = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "env": launch.ENVIRONMENT}
    code = f"import sys; sys.exit(sys.version_info < (3, 11) or not open({launch.__file__!r}).read())"
    try:
        subprocess.run([executable, "-c", code], check=True, capture_output=True, timeout=30, **keywords)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return keywords


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("level", at_levels(level for level in REACHED if level < 4))
def test_an_ordinary_user_is_jailed_too(level):
    for executable in filter(None, (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin"))):
        keywords = as_nobody(executable)
        if keywords:
            break
    else:
        pytest.skip("nobody can run an interpreter of 3.11 or later and read the package here")
    with tempfile.TemporaryDirectory(prefix="ramify-test-") as base:
        Path(base).chmod(0o700)
        os.chown(base, NOBODY, NOBODY)
        with subprocess.Popen(
            launch.Start(level).command(executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **keywords
        ) as process:
            settings = launch.Start(level).settings(seccomp_program(level), base)
            assert ask(process, frames.encode(settings)) == ({"ready": True}, b"")
            code = """
import os, socket

def denied(action, *arguments):
    try:
        action(*arguments)
        return False
    except OSError:
        return True

open("own", "w").close()
import threading
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
[os.getuid(), denied(socket.socket), denied(os.kill, os.getppid(), 0), denied(open, "/etc/passwd")]"""
            result = read_answer(*ask(process, frames.request(1, code, 10)), level)
            process.stdin.close()
            assert process.wait(20) == 0
        Path(base).mkdir(exist_ok=True)
    wanted = [0 if level == 3 else NOBODY, level >= 1, level >= 1, level >= 2]
    assert (result.status, result.stdout) == ("ok", f"thread\n{wanted}\n")


def test_the_zygote_loads_nothing_but_the_standard_library_and_the_sandbox(tmp_path):
    # The bootstrap's last line starts to serve; what it has imported by then is what a zygote holds.
    *start, bootstrap = launch.Start(1).command()
    listing = bootstrap.replace(
        "\nmain(register_at_fork, hooks)\n", "\nprint(*{name.split('.')[0] for name in sys.modules})\n"
    )
    result = subprocess.run(
        [*start, listing], capture_output=True, text=True, timeout=30, env=launch.ENVIRONMENT, cwd=tmp_path
    )
    loaded = set(result.stdout.split())
    assert "ramify" in loaded
    assert loaded - {"ramify", "__main__"} <= set(sys.stdlib_module_names)


@pytest.mark.skipif(why_not(1) is not None, reason="level 1 is out of reach here")
def test_a_request_that_finds_no_free_folder_is_told_when_it_begins(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    with subprocess.Popen(
        launch.Start(1).command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
    ) as process:
        assert ask(process, frames.encode(launch.Start(1).settings(seccomp_program(1), str(base))))[0][
            "ready"
        ]
        # Its folder has to be emptied before the next one can begin.
        send(process, frames.request(1, "open('left', 'w').close()", 10) + frames.request(2, "2", 10))
        heads = [read(process)[0]]
        while heads[-1]["id"] != 2 or "status" not in heads[-1]:
            heads.append(read(process)[0])
        process.stdin.close()
        assert process.wait(20) == 0
    order = [
        next(name for name in ("waiting", "begun", "status") if name in head) + str(head["id"])
        for head in heads
    ]
    assert order == ["waiting2", "status1", "begun2", "status2"]


@pytest.mark.skipif(why_not(1) is not None, reason="level 1 is out of reach here")
def test_waiting_for_a_folder_costs_a_call_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main():
        zygote = ZygoteProcess(launch.Start(1))
        await zygote.start()
        # Longer than the second one's limit and what the zygote is given beyond it.
        first = asyncio.create_task(zygote.run("import time\ntime.sleep(6)", 10.0, ()))
        second = asyncio.create_task(zygote.run("print(6 * 7)", 0.5, ()))
        answers = await asyncio.gather(first, second)
        await zygote.stop()
        return answers

    answers = asyncio.run(main())
    assert [answer and answer[0]["status"] for answer in answers] == ["ok", "ok"]
    assert answers[1][1] == b"42\n"


@pytest.mark.skipif(why_not(1) is not None, reason="level 1 is out of reach here")
def test_a_call_that_is_cancelled_while_it_waits_for_a_folder_never_runs_and_its_clock_goes_on(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main():
        clock = CallClock(asyncio.get_running_loop().time)
        zygote = ZygoteProcess(launch.Start(1))
        await zygote.start()

        async def wait_for_a_folder():
            set_clock(clock)
            await zygote.run("while True: pass", 60.0, ())

        first = asyncio.create_task(zygote.run("while True: pass", 60.0, ()))
        second = asyncio.create_task(wait_for_a_folder())
        while clock.queued == 0.0:
            await asyncio.sleep(0.01)
        third = asyncio.create_task(zygote.run("print(6 * 7)", 60.0, ()))
        for call in (second, first):
            call.cancel()
        await asyncio.wait((first, second))
        counted = clock.own
        answer = await asyncio.wait_for(third, 20)
        counts = clock.own > counted
        await zygote.stop()
        return answer, counts

    answer, counts = asyncio.run(main())
    assert answer[1] == b"42\n"
    assert counts


def test_the_zygote_ends_with_its_input_and_removes_its_folder(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    with subprocess.Popen(
        launch.Start(0).command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
    ) as process:
        settings = launch.Start(0).settings(b"", str(base))
        assert ask(process, frames.encode(settings)) == ({"ready": True}, b"")
        send(process, frames.request(1, "while True: pass", 60))
        assert "pid" in read(process)[0]
        process.stdin.close()
        assert process.wait(20) == 0
    assert not base.exists()


# Programs of level 0 that start others, which may get another user's id: these end with the call.

# Each prints the process id of another program that would go on for long after the call.
STARTS = {
    "a program": "import subprocess\nprint(subprocess.Popen(['sleep', '300']).pid, flush=True)",
    "one in a session of its own": (
        "import subprocess\nprint(subprocess.Popen(['sleep', '300'], start_new_session=True).pid, flush=True)"
    ),
    "one of a shell's": "import os\nos.system('sleep 300 & echo $!')",
    "one of a shell's in another session": (
        "import subprocess\nsubprocess.run(['sh', '-c', 'sleep 300 & echo $!'], start_new_session=True)"
    ),
    "one that it becomes": "import os\nprint(os.getpid(), flush=True)\nos.execv('/bin/sleep', ['sleep', '300'])",
}


ENDS = {"ends": "", "does not end": "\nwhile True: pass"}


@pytest.fixture
def open_box(box):
    """The box that lets programs start others."""
    if box.level > 0:
        pytest.skip("from level 1 on no program starts another")
    return box


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STARTS)
def test_other_programs_end_with_the_call(open_box, start, end):
    result = open_box.run(STARTS[start] + ENDS[end], 1.0)
    assert result.status == ("timeout" if ENDS[end] or "becomes" in start else "ok")
    wait_until(lambda: not is_running(int(result.stdout.split()[0])))


CALLER = """
import asyncio, sys
from ramify.sandbox.pool import open_sandbox
asyncio.run(open_sandbox(0, 0).run(sys.argv[1], 60.0))
"""


def test_other_programs_end_with_the_caller(open_box, tmp_path):
    started, folders = tmp_path / "started", tmp_path / "folders"
    folders.mkdir()
    code = f"""
import os, subprocess
other = subprocess.Popen(["sleep", "300"], start_new_session=True)
with open({str(started)!r} + ".new", "w") as file:
    file.write(str(other.pid))
os.rename(file.name, {str(started)!r})
while True: pass"""
    environment = {**os.environ, "TMPDIR": str(folders)}
    with subprocess.Popen([sys.executable, "-c", CALLER, code], env=environment) as caller:
        while not started.exists():
            assert caller.poll() is None
            time.sleep(0.01)
        caller.kill()
    wait_until(lambda: not is_running(int(started.read_text())))
    wait_until(lambda: not any(folders.iterdir()))


# How many pages of 2 MiB lie wholly in the heap is by chance: the kernel chooses addresses anew for each process.
LARGE_PAGES = """
import gc
from ramify.sandbox.zygote import use_huge_pages
size = 2 << 20
rows = [[number, str(number)] for number in range(400_000)]
wanted = sum(number for number, _ in rows)
ends = [line.split()[0].split("-") for line in open("/proc/self/maps")]
blocks = {id(each) // size for each in gc.get_objects()}
whole = sum(any(int(a, 16) <= n * size and (n + 1) * size <= int(b, 16) for a, b in ends) for n in blocks)
moved = use_huge_pages()
lines = open("/proc/self/smaps_rollup").read().splitlines()
kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
assert sum(number for number, _ in rows) == wanted
assert all(text == str(number) for number, text in rows)
print(whole, moved, kilobytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages of 2 MiB are asked of Linux")
def test_objects_move_to_large_pages_and_stay_as_they_are():
    done = subprocess.run([sys.executable, "-c", LARGE_PAGES], capture_output=True, text=True, check=True)
    whole, moved, kilobytes = map(int, done.stdout.split())
    if moved == 0:
        pytest.skip("this kernel does not collapse pages on demand")
    # The kernel may have no large page free just now, and blocks made of several mappings may count beside these.
    assert moved >= whole / 2 > 0
    assert kilobytes >= 2048 * whole / 2
