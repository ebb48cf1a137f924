"""Other programs that a program of level 0 has started end with its call, though they have another user's id."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def gone(pid: int) -> bool:
    """Whether the process ends soon."""
    for _ in range(500):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


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
    assert gone(int(result.stdout.split()[0]))


CALLER = """
import asyncio, sys
from ramify.sandbox.pool import open_sandbox
asyncio.run(open_sandbox(0, 0).run(sys.argv[1], 60.0))
"""


def test_other_programs_end_with_the_caller(open_box, tmp_path):
    told, folders = tmp_path / "told", tmp_path / "folders"
    folders.mkdir()
    code = f"""
import os, subprocess
other = subprocess.Popen(["sleep", "300"], start_new_session=True)
with open({str(told)!r} + ".new", "w") as file:
    file.write(str(other.pid))
os.rename(file.name, {str(told)!r})
while True: pass"""
    environment = {**os.environ, "TMPDIR": str(folders)}
    with subprocess.Popen([sys.executable, "-c", CALLER, code], env=environment) as caller:
        while not told.exists():
            assert caller.poll() is None
            time.sleep(0.01)
        caller.kill()
    assert gone(int(told.read_text()))
    for _ in range(500):
        if not any(folders.iterdir()):
            break
        time.sleep(0.01)
    assert list(folders.iterdir()) == []
