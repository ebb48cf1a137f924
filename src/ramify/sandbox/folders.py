"""Folders that hostile code may fill, move and replace, and their assignment to snippets. Standard library only."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ramify.sandbox.kernel import Landlock

_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_FLAGS = _LIST_FLAGS | getattr(os, "O_PATH", 0)


class Folder:
    """A folder, opened before any other program could reach it.

    Whatever appears at its path later (a link to another folder, say), only the contents of this folder are removed.
    """

    def __init__(self, path: str) -> None:
        """Open the folder at `path`.

        Raises:
            OSError: There is no folder; a link to a folder does not count.
        """
        self.path = path
        self.descriptor = os.open(path, _LIST_FLAGS)

    @property
    def is_usable(self) -> bool:
        """True if the folder is still at its path, and empty."""
        with contextlib.suppress(OSError):
            status = Path(self.path).lstat()
            with os.scandir(self.descriptor) as entries:
                return os.path.samestat(status, os.fstat(self.descriptor)) and next(entries, None) is None
        return False

    def empty(self) -> None:
        """Remove the contents, as far as the system permits; entries that are already gone are no error.

        Walks the tree with one folder open at a time, down by name and up by "..", so neither its depth nor the length
        of its paths matters. Links are not followed. The walk stops where ".." is not the folder it came from: another
        program is moving folders meanwhile.
        """
        here = os.dup(self.descriptor)
        try:
            way = [_enter("", here)]
            while True:
                if way[-1].pending:
                    name = way[-1].pending.pop()
                    with contextlib.suppress(OSError):
                        here = _exchange(here, _open(name, here))
                        way.append(_enter(name, here))
                    continue
                done = way.pop()
                if not way:
                    return
                here = _exchange(here, os.open("..", _LIST_FLAGS, dir_fd=here))
                if _identity(here) != way[-1].identity:
                    return
                with contextlib.suppress(OSError):
                    os.rmdir(done.name, dir_fd=here)
        except OSError:
            return
        finally:
            os.close(here)

    def remove(self) -> None:
        """Remove the folder wherever it is now, and whatever is at its path if that is an empty folder or a link."""
        self.remove_itself()
        with contextlib.suppress(OSError):
            path = Path(self.path)
            path.unlink() if path.is_symlink() else path.rmdir()

    def remove_itself(self) -> None:
        """Empty the folder, remove it wherever it is now, and close it.

        For a folder whose parent others can move: by now its path may lead to a folder of another program.
        """
        self.empty()
        own = os.fstat(self.descriptor)
        with contextlib.suppress(OSError):
            # If the folder was moved, the kernel knows where it is.
            now = Path(f"/proc/self/fd/{self.descriptor}").readlink()
            if os.path.samestat(now.lstat(), own):
                now.rmdir()
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class _OpenFolder:
    """A folder on the way down, its files already removed: its name, its identity, and the subfolders still to do."""

    name: str
    identity: tuple[int, int]
    pending: list[str] = field(default_factory=list)


def _enter(name: str, folder: int) -> _OpenFolder:
    """Remove the files of an open folder, and list its subfolders."""
    with contextlib.suppress(OSError):
        # Even the owner cannot change the folder without these rights.
        os.fchmod(folder, 0o700)
    opened = _OpenFolder(name, _identity(folder))
    for entry, is_folder in _entries(folder):
        if is_folder:
            opened.pending.append(entry)
            continue
        with contextlib.suppress(OSError):
            os.unlink(entry, dir_fd=folder)
    return opened


def _open(name: str, folder: int) -> int:
    """Open a subfolder, even one that its owner may not list."""
    try:
        return os.open(name, _LIST_FLAGS, dir_fd=folder)
    except PermissionError:
        handle = os.open(name, _PATH_FLAGS, dir_fd=folder)
        try:
            # Not by name: a link could have replaced it.
            Path(f"/proc/self/fd/{handle}").chmod(0o700)
        except FileNotFoundError:
            # The sandbox's own root has no /proc, but also nothing that a link could lead to.
            os.chmod(name, 0o700, dir_fd=folder)
        finally:
            os.close(handle)
        return os.open(name, _LIST_FLAGS, dir_fd=folder)


def _exchange(old: int, new: int) -> int:
    os.close(old)
    return new


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: int) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Slot:
    """A folder, and the descriptor of its Landlock ruleset if it has one."""

    folder: Folder
    rules: int | None


class Slots:
    """Assigns empty folders. A folder that is released with files in it is emptied by a child process.

    `lost`: a folder could not be emptied, or is no longer at its path; it is not used again.
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

    def release(self, slot: Slot) -> None:
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
