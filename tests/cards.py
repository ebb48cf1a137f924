"""A GPU's memory as a file that several programs book on: each change is a line, and what overlaps is refused as on a GPU.

Of 100 units a learner keeps 20 and needs 80 to compute, which its allocator keeps until it is released; a server takes 70
when it starts or wakes, and 5 while it sleeps.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WHOLE, RESIDENT, PEAK, AWAKE, ASLEEP = 100, 20, 80, 70, 5
FOLDER = "CARDS_FOLDER"
"""The environment variable with the folder of the cards."""


class OverlapError(Exception):
    """More was asked for than is free, or another program measures the memory."""


class Card:
    """One GPU, as one program on it sees it."""

    def __init__(self, folder: Path, number: str, owner: str) -> None:
        self._path, self._owner = folder / f"card-{number}.json", owner
        self._log = self._path.with_suffix(".jsonl")
        self.others = 0

    def book(self, size: int, event: str, *, measures: bool = False) -> None:
        """Hold `size` units from now on; with `measures` nobody else may change what he holds until the next booking."""
        with self._locked() as card:
            held = {owner: entry for owner, entry in card.items() if _lives(entry["pid"])}
            others = [entry for owner, entry in held.items() if owner != self._owner]
            self.others = sum(entry["size"] for entry in others)
            measured = any(entry["measures"] for entry in others)
            refused = self.others + size > WHOLE or measured
            self._write(event, size, refused)
            if not refused:
                held[self._owner] = {"pid": os.getpid(), "size": size, "measures": measures}
            card.clear()
            card.update(held)
        if refused:
            why = (
                "another program measures the memory" if measured else f"{self.others} of {WHOLE} are in use"
            )
            raise OverlapError(f"out of memory: {event} takes {size}, {why}")

    @contextmanager
    def _locked(self) -> Iterator[dict]:
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            card = json.loads(file.read() or "{}")
            yield card
            file.seek(0)
            file.truncate()
            json.dump(card, file)

    def _write(self, event: str, size: int, refused: bool) -> None:
        line = {"time": time.time(), "who": self._owner, "event": event, "size": size, "refused": refused}
        with self._log.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def events_of(folder: Path, number: int) -> list[tuple[str, str]]:
    """Who did what on a card, in order; the same again in a row is left out."""
    lines = [json.loads(line) for line in (folder / f"card-{number}.jsonl").read_text().splitlines()]
    assert not [line for line in lines if line["refused"]], lines
    events = [(line["who"], line["event"]) for line in lines]
    return [event for before, event in zip([None, *events], events, strict=False) if event != before]
