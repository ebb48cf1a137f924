"""The folders that snippets run in, each for one snippet at a time. Standard library only."""

import os
from dataclasses import dataclass
from pathlib import Path

from ramify.sandbox.folders import Folder
from ramify.sandbox.landlock import Landlock


@dataclass(frozen=True, slots=True)
class Slot:
    """A folder, and the descriptor of its Landlock ruleset if it has one."""

    folder: Folder
    rules: int | None


class Slots:
    """Hands out empty folders. A folder that comes back with files in it is emptied by a child process.

    `lost` says that a folder could not be emptied, or is no longer at its path; that folder is not used again.
    """

    def __init__(self, base: str, count: int, landlock: Landlock | None) -> None:
        self._base = Folder(base)
        self.free: list[Slot] = []
        self.lost = False
        self._all: list[Slot] = []
        self._cleaners: dict[int, Slot] = {}
        for number in range(count):
            path = f"{base}/{number}"
            Path(path).mkdir(mode=0o700, exist_ok=True)
            self._all.append(Slot(Folder(path), landlock.rules_for(path) if landlock else None))
        self.free.extend(self._all)

    def give_back(self, slot: Slot) -> None:
        """Take a folder whose snippet has ended."""
        if slot.folder.is_usable:
            self.free.append(slot)
            return
        # In a process of its own, since a snippet may leave a million files.
        try:
            pid = os.fork()
        except OSError:
            self.lost = True
            return
        if pid == 0:
            try:
                slot.folder.empty()
            finally:
                os._exit(0)
        self._cleaners[pid] = slot

    def cleaner_ended(self, pid: int) -> None:
        """Handle the end of a child process; does nothing if it was not a cleaner."""
        slot = self._cleaners.pop(pid, None)
        if slot is None:
            return
        if slot.folder.is_usable:
            self.free.append(slot)
        else:
            self.lost = True

    def remove(self) -> None:
        """Remove all folders at the end, including those that were moved."""
        for slot in self._all:
            slot.folder.remove_itself()
        self._base.remove()
