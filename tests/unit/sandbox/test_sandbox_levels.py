"""Levels are found by trying: on other machines, as another user, without what they need."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ramify.core.errors import MachineError
from ramify.sandbox import launch
from ramify.sandbox.levels import MAX_LEVEL, detect_level, why_not
from ramify.sandbox.pool import open_sandbox

pytestmark = pytest.mark.integration

NOBODY = 65534
PATHS = (str(Path(launch.__file__).parents[2]), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))

REPORT = """
import asyncio, json, os
from ramify.sandbox.levels import MAX_LEVEL, detect_level, why_not
from ramify.sandbox.pool import open_sandbox

CODE = '''
import os
def denied(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return True
    return False
open("own", "w").close()
import threading
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
[os.listdir("."), denied(os.kill, os.getppid(), 0), denied(open, "/etc/passwd"), os.path.exists("/proc/self")]'''

async def main(level):
    sandbox = open_sandbox(level, level)
    plain = await sandbox.run(CODE, 20)
    endless = await sandbox.run("while True: pass", 0.2)
    science = await sandbox.run("import numpy\\nnumpy.arange(4).sum()", 20)
    await sandbox.close()
    return [plain.level, plain.stdout or plain.stderr, endless.status, science.stdout or science.stderr]

reached = [level for level in range(MAX_LEVEL + 1) if why_not(level) is None]
reasons = [why_not(level) for level in range(MAX_LEVEL + 1)]
results = [asyncio.run(main(level)) for level in reached]
print(json.dumps([os.getuid(), detect_level(), reasons, results]))
"""

NO_NAMESPACES = """
import pyseccomp
calls = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
calls.add_rule(pyseccomp.ERRNO(1), "unshare")
calls.add_rule(pyseccomp.ERRNO(38), "clone3")
for flag in (0x10000000, 0x20000000, 0x40000000):
    calls.add_rule(pyseccomp.ERRNO(1), "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
calls.load()
"""


def expected(level: int) -> list:
    values = [["own"], level >= 1, level >= 2, level < 3]
    return [level, f"thread\n{values}\n", "timeout", "6\n"]


def report(executable: str, code: str, **keywords):
    """Run `code` in a fresh process and return the JSON that it prints."""
    environment = {
        "PYTHONPATH": os.pathsep.join(PATHS),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    result = subprocess.run(
        [executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd="/",
        **keywords,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_an_ordinary_user_reaches_what_root_reaches():
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    keywords = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    check = "import sys; assert sys.version_info[:2] == {}; import ramify.sandbox.pool, pyseccomp; print(0)"
    for executable in filter(None, (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin"))):
        try:
            report(executable, check.format(tuple(sys.version_info[:2])), **keywords)
        except (AssertionError, OSError):
            continue
        break
    else:
        pytest.skip("nobody can run an interpreter of this version and read the packages here")
    uid, reached, reasons, results = report(executable, REPORT, **keywords)
    assert uid == NOBODY
    assert results == [expected(level) for level, reason in enumerate(reasons) if reason is None]
    assert reached == max(level for level, reason in enumerate(reasons) if reason is None)
    # A machine may forbid user namespaces to ordinary users; all else needs no rights.
    assert [reason for reason in reasons[:3] if reason] == [
        why_not(level) for level in range(3) if why_not(level)
    ]


def test_without_namespaces_levels_3_and_4_are_out_of_reach_and_say_why():
    if why_not(1) is not None:
        pytest.skip("no seccomp to forbid them with")
    _, reached, reasons, results = report(sys.executable, NO_NAMESPACES + REPORT)
    assert reached == detect_level(2)
    assert reasons[:3] == [why_not(level) for level in range(3)]
    assert reasons[3].startswith("no user namespaces here (unshare: Operation not permitted")
    assert reasons[4]
    assert results == [expected(level) for level in range(reached + 1)]


def test_without_bubblewrap_level_4_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not.__wrapped__(4) == "bubblewrap is not installed (no bwrap on PATH)"


def test_a_bubblewrap_that_fails_is_quoted(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho bwrap: no permission >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert why_not.__wrapped__(4) == "the sandbox process died (bwrap: no permission)"


def test_a_bubblewrap_that_isolates_nothing_is_found_out(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert why_not.__wrapped__(4) is not None


def test_a_minimum_out_of_reach_is_refused_in_one_line_that_names_the_key():
    with pytest.raises(MachineError) as error:
        open_sandbox(2, max_level=1)
    message = str(error.value)
    assert message.startswith("sandbox.min_level = 2: this machine reaches level 1 (not level 2: ")
    assert (
        "Set sandbox.min_level = 1 to accept that level, which guards against accidents, not against attacks."
        in message
    )
    assert "\n" not in message
    with pytest.raises(MachineError, match=f"sandbox.min_level = {MAX_LEVEL + 1}: this machine reaches"):
        open_sandbox(MAX_LEVEL + 1)
