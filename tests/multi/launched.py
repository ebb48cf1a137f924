"""The command line under torchrun, on the loopback device."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

SECONDS = 400.0


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def start(size, *arguments, restarts=0, program=("-m", "ramify"), launcher=None, **environment):
    """`ramify`, or another `program`, on `size` processes."""
    launcher = [
        "torch.distributed.run", "--nproc-per-node", size, *(launcher or ["--master-port", free_port()])
    ]  # fmt: skip
    return subprocess.Popen(
        [
            str(word)
            for word in (
                sys.executable, "-m", *launcher, "--max-restarts", restarts, "--monitor-interval", "0.1",
                *program, *arguments,
            )
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def start_by_hand(recipe, port, size, command="sft", program=("-m", "ramify"), folders=None, **environment):
    """Ranks that a person starts one by one, `folders`: where; they cannot know that they are on one machine."""
    return [
        subprocess.Popen(
            [sys.executable, *program, command, str(recipe)],
            cwd=folders and folders[number],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **by_hand(number, size, port, **environment)},
        )
        for number in range(size)
    ]


def finish(process, seconds=SECONDS):
    """Exit status and what was said, without torchrun's own report of a failure."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {seconds} s: {out} {err}") from None
    return process.returncode, out + err


def ramify(size, *arguments, **settings):
    return finish(start(size, *arguments, **settings))


def by_hand(number, size, port, **environment):
    """The environment of a rank that a person starts; it cannot know that the others are on this machine."""
    return {
        "RANK": f"{number}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{number}", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}", "GLOO_SOCKET_IFNAME": "lo", **environment,
    }  # fmt: skip


def forked_ramify(forked, size, *arguments):
    """`ramify` in the environment of torchrun, without torchrun and without the seconds of importing torch."""
    port = free_port()
    torchrun = {"LOCAL_WORLD_SIZE": f"{size}", "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}
    done = forked.ranks(*((arguments, by_hand(number, size, port, **torchrun)) for number in range(size)))
    return max((abs(status) for status, *_ in done)), "".join(out + err for _, out, err in done)


def ours(output):
    """The lines that ramify itself wrote."""
    return [line for line in output.splitlines() if re.match(r"ramify \w+: |20\d\d-", line)]


def ranks_of(process):
    """Process ids of the ranks that torchrun has running, by rank."""
    ranks = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            environment = dict(
                part.split("=", 1) for part in (entry / "environ").read_text().split("\0") if "=" in part
            )
        except (OSError, ValueError):
            continue
        if parent == process.pid and "RANK" in environment:
            ranks[int(environment["RANK"])] = int(entry.name)
    return ranks


def wait_until(condition, process):
    until = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < until
        time.sleep(0.02)
