"""The command line in forks of a process that has imported everything, for tests that start many runs and kill them.

A run can be told to die before it does something to a file: a pattern of "event names" of Python's audit events, such as
"^open .*/metrics.jsonl a", and the how manieth of them. Or it gets a signal when a file has so many lines.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 120.0
SERVER = r"""
import gc, json, os, re, signal, sys, time
import ramify.commands.check_files, ramify.commands.memory, ramify.eval.run, ramify.obs.console
import ramify.rewards.parts, ramify.synth.run, ramify.train.rl, ramify.train.rollout, ramify.train.selfcritic
import ramify.train.supervised
from ramify.cli import main

# A collection in a fork then copies none of what was imported.
gc.freeze()

def die_there(pattern, left):
    def look(event, arguments):
        nonlocal left
        if event == "open" or event.startswith(("os.", "shutil.")):
            names = [os.fsdecode(a) for a in arguments if isinstance(a, (str, bytes, os.PathLike))]
            if re.search(pattern, " ".join([event, *names])):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(look)

def is_there(path, lines):
    try:
        return os.path.isdir(path) or open(path, "rb").read().count(b"\n") >= lines
    except OSError:
        return False

def has_ended(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(asked["cwd"])
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(asked["said"] + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if asked["at"]:
            die_there(*asked["at"])
        sys.exit(main(asked["arguments"]))
    if asked["seconds"] is not None:
        time.sleep(asked["seconds"])
        os.kill(child, signal.SIGKILL)
    if asked["when"] is not None:
        path, lines, number = asked["when"]
        while not is_there(path, lines) and not has_ended(child):
            time.sleep(0.002)
        os.kill(child, number)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ForkedRuns:
    """Runs one after the other; `said` is a folder for what they say."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __call__(self, *arguments, at=None, seconds=None, when=None) -> tuple[int, str, str]:
        """Exit status, output and errors of a run that dies `at` (pattern, count) or after `seconds`, if it still runs.

        `when`: path, number of lines, signal: the run gets the signal when the file has as many lines, or the folder is there.
        """
        request = {"arguments": [str(word) for word in arguments], "at": at, "seconds": seconds, "when": when}
        request["cwd"] = str(Path.cwd())
        self._server.stdin.write(json.dumps(request | {"said": f"{self._log}/"}) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        return status, *((self._log / name).read_text() for name in ("out", "err"))

    def close(self) -> None:
        self._server.communicate(timeout=SECONDS)
