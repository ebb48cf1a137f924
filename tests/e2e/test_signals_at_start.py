"""A signal at any moment of a start: one line, status 128 + its number, and nothing is left behind.

The moments are events that Python reports (PEP 578), so they do not depend on how fast the machine is.
"""

import os
import signal
import subprocess
import sys

import pytest

from e2e_runs import EVAL, SECONDS, TRAIN, python, write_task

CHILD = """
import os, sys
number, event, named = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def hook(happened, arguments):
    global event
    if happened == event and str(arguments[0]).startswith(named):
        event = None
        os.kill(os.getpid(), number)
sys.addaudithook(hook)
sys.argv[1:] = sys.argv[4:]
from ramify.cli import main
sys.exit(main())
"""
MOMENTS = {
    "the parser": ("import", "argparse"), "the command": ("import", "ramify.commands.check_files"),
    "the schemas": ("import", "pydantic"), "a library with C extensions": ("import", "torch.nn"),
    "models": ("import", "transformers.models"), "the search index": ("import", "tantivy"),
    "the sandbox's folder": ("os.mkdir", "{tmp}/ramify-"), "the sandbox's process": ("subprocess.Popen", "/"),
    "the run's folder": ("os.mkdir", "{run}"),
}  # fmt: skip


def stopped(tmp_path, number, event, named, *arguments):
    """Exit status, standard error and what lies in the folder for temporary files."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    named = named.format(tmp=tmp, run=tmp_path / "task" / "run")
    command = [sys.executable, "-c", CHILD, str(int(number)), event, named, *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(tmp), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False
    )
    # torch has a cache of its own there.
    return done.returncode, done.stderr, [path.name for path in tmp.glob("ramify-*")]


@pytest.mark.parametrize("moment", MOMENTS)
def test_training_that_is_stopped_as_it_starts(tmp_path, model_folder, moment):
    recipe = write_task(tmp_path / "task", model_folder, TRAIN)
    number = (signal.SIGINT, signal.SIGTERM)[len(moment) % 2]
    status, output, left = stopped(tmp_path, number, *MOMENTS[moment], "train", recipe)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert (status, output, left) == (128 + number, f"ramify train: stopped by {name}\n", [])
    assert not (tmp_path / "task" / "run").exists()


@pytest.mark.parametrize(
    ("command", "moment"), [("eval", "the sandbox's process"), ("doctor", "a library with C extensions")]
)
def test_other_commands_that_are_stopped_as_they_start(tmp_path, model_folder, command, moment):
    recipe = write_task(tmp_path / "task", model_folder, EVAL + "[tools.python]\n[sandbox]\nmin_level = 0\n")
    outcome = stopped(tmp_path, signal.SIGTERM, *MOMENTS[moment], command, recipe)
    assert outcome == (143, f"ramify {command}: stopped by SIGTERM\n", [])
    assert not (tmp_path / "task" / "run").exists()


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    """As `nohup` and `&` in a script have it."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + CHILD
    command = [sys.executable, "-c", code, "2", "import", "argparse", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout[:7], done.stderr) == (0, "ramify ", "")


def test_a_fault_of_ours_is_a_traceback_that_acts_on_no_terminal(monkeypatch):
    """A library that fails in a way that nobody foresaw, with a text of somebody else's in its message."""
    monkeypatch.setenv("PROBE_KEY", "s3cr3t")
    code = """
import sys
from ramify.net.secrets import read_key
import ramify.cli
class Broken:
    def find_spec(self, name, *_):
        if name == "ramify.commands.doctor":
            raise RuntimeError("said \x1b[2J " + read_key("PROBE_KEY"))
sys.meta_path.insert(0, Broken())
sys.argv = ["ramify", "doctor"]
sys.exit(ramify.cli.main())
"""
    done = python(code)
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: said \\x1b[2J [key PROBE_KEY]\n")
    assert done.stderr.count("Traceback") == 1


def test_what_python_drops_in_a_callback_is_raised_again(tmp_path):
    code = """
import os, signal, sys, time
from ramify.core.errors import SignalInterrupt
from ramify.runtime.stopping import Stops
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))
with Stops("probe", owns_process=True) as stops:
    try:
        late = Late()
        del late
        while True:
            time.sleep(0.01)
    except SignalInterrupt:
        print(stops.line)
"""
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "probe: stopped by SIGTERM\n", "")
