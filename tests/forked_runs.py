"""The command line in forks of a process that has imported everything, for tests that start many runs, kill them or run ranks.

A run can be told to die, or to get a signal, before it does something to a file: a pattern of "event names" of Python's audit
events, such as "^open .*/metrics.jsonl a", and the how manieth of them. That is the same instant on every machine. Or it gets a
signal some time after a file has so many lines, when it may have ended.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 300.0
SERVER = r"""
import gc, json, os, re, signal, sys, time
import ramify.commands.check_files, ramify.commands.memory, ramify.eval.run, ramify.obs.console
import ramify.rewards.parts, ramify.synth.run, ramify.train.rl, ramify.train.rollout, ramify.train.selfcritic
import ramify.train.supervised
from ramify.cli import main
from ramify.sandbox.levels import detect_level

# Each run would try the levels of the sandbox anew.
detect_level()
# A collection in a fork then copies none of what was imported.
gc.freeze()

def die_there(pattern, left, number=signal.SIGKILL):
    def look(event, arguments):
        nonlocal left
        if event == "open" or event.startswith(("os.", "shutil.")):
            names = [os.fsdecode(a) for a in arguments if isinstance(a, (str, bytes, os.PathLike))]
            if re.search(pattern, " ".join([event, *names])):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), number)
    sys.addaudithook(look)

def is_there(path, lines):
    try:
        return os.path.isdir(path) or open(path, "rb").read().count(b"\n") >= lines
    except OSError:
        return False

def has_ended(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

for line in sys.stdin:
    request = json.loads(line)
    children = []
    for rank in request["ranks"]:
        children.append(os.fork())
        if children[-1] == 0:
            os.chdir(request["cwd"])
            os.environ.update(rank["environment"])
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(rank["log"] + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            if request["at"]:
                die_there(*request["at"])
            sys.exit(main(rank["arguments"]))
    child = children[0]
    if request["seconds"] is not None:
        time.sleep(request["seconds"])
        os.kill(child, signal.SIGKILL)
    if request["when"] is not None:
        path, lines, number = request["when"]
        while not is_there(path, lines) and not has_ended(child):
            time.sleep(0.002)
        os.kill(child, number)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children]), flush=True)
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
            # The second as ramify sets it before it imports torch.
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )

    def __call__(self, *arguments, at=None, seconds=None, when=None, **environment) -> tuple[int, str, str]:
        """Exit status, output and errors of a run that dies `at` (pattern, count) or after `seconds`, if it still runs.

        With a third word in `at`, the run gets that signal. `when`: path, number of lines, signal: the run, if it has not ended,
        gets the signal soon after the file has as many lines, or the folder is there.
        """
        (done,) = self._run([(arguments, environment)], at=at, seconds=seconds, when=when)
        return done

    def ranks(self, *ranks) -> list[tuple[int, str, str]]:
        """The same of runs at the same time, each with arguments and environment of its own."""
        return self._run(ranks, at=None, seconds=None, when=None)

    def _run(self, ranks, **request):
        request["cwd"] = str(Path.cwd())
        request["ranks"] = [
            {"arguments": [str(word) for word in arguments], "environment": environment, "log": f"{self._log}/{number}."}
            for number, (arguments, environment) in enumerate(ranks)
        ]  # fmt: skip
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        statuses = json.loads(self._server.stdout.readline())
        texts = (
            [(self._log / f"{n}.{name}").read_text() for name in ("out", "err")] for n in range(len(ranks))
        )
        return [(status, *text) for status, text in zip(statuses, texts, strict=True)]

    def close(self) -> None:
        self._server.communicate(timeout=SECONDS)
