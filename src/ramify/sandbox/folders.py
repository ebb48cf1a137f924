"""Folders that hostile code fills, moves and replaces. Standard library only: the zygote uses it too."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HELD = _LISTED | getattr(os, "O_PATH", 0)


class Folder:
    """A folder that is held on to before anyone else can reach it.

    Whatever stands at its path later (a link to another folder, say), what is removed is what is in this one.
    """

    def __init__(self, path: str) -> None:
        """Hold on to the folder at `path`.

        Raises:
            OSError: There is none; a link to one is none.
        """
        self.path = path
        self.descriptor = os.open(path, _LISTED)

    @property
    def is_usable(self) -> bool:
        """Whether it still stands at its path, with nothing in it."""
        with contextlib.suppress(OSError):
            found = Path(self.path).lstat()
            with os.scandir(self.descriptor) as entries:
                return os.path.samestat(found, os.fstat(self.descriptor)) and next(entries, None) is None
        return False

    def empty(self) -> None:
        """Remove all that is in it, as far as the system lets this process; what is gone already is fine.

        Goes from folder to folder, down by name and up by "..", with one of them open: neither their depth nor the length
        of their paths matters. Links are not followed, and where ".." is not the folder that it came from, because
        somebody moves folders meanwhile, it stops.
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
                here = _exchange(here, os.open("..", _LISTED, dir_fd=here))
                if _identity(here) != way[-1].identity:
                    return
                with contextlib.suppress(OSError):
                    os.rmdir(done.name, dir_fd=here)
        except OSError:
            return
        finally:
            os.close(here)

    def remove(self) -> None:
        """Remove it wherever it is, and what stands at its path if that is an empty folder or a link."""
        self.remove_itself()
        with contextlib.suppress(OSError):
            path = Path(self.path)
            path.unlink() if path.is_symlink() else path.rmdir()

    def remove_itself(self) -> None:
        """Empty it, remove it wherever it is, and let go of it.

        For a folder in one that others can move: its path may lead to folders of somebody else by now.
        """
        self.empty()
        own = os.fstat(self.descriptor)
        with contextlib.suppress(OSError):
            # It may have been moved: the kernel knows where to.
            now = Path(f"/proc/self/fd/{self.descriptor}").readlink()
            if os.path.samestat(now.lstat(), own):
                now.rmdir()
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class _Entered:
    """A folder on the way down, without its files: its name, what it is, and the folders in it that are still there."""

    name: str
    identity: tuple[int, int]
    pending: list[str] = field(default_factory=list)


def _enter(name: str, folder: int) -> _Entered:
    """Remove the files of an open folder."""
    with contextlib.suppress(OSError):
        # Without these rights its owner cannot change it.
        os.fchmod(folder, 0o700)
    entered = _Entered(name, _identity(folder))
    for entry, is_folder in _entries(folder):
        if is_folder:
            entered.pending.append(entry)
            continue
        with contextlib.suppress(OSError):
            os.unlink(entry, dir_fd=folder)
    return entered


def _open(name: str, folder: int) -> int:
    """Open a folder in a folder, also one that its owner may not list."""
    try:
        return os.open(name, _LISTED, dir_fd=folder)
    except PermissionError:
        place = os.open(name, _HELD, dir_fd=folder)
        try:
            # Not by its name: a link could have taken its place.
            Path(f"/proc/self/fd/{place}").chmod(0o700)
        except FileNotFoundError:
            # There is no /proc in a root of the sandbox's own, and nothing that a link could lead to.
            os.chmod(name, 0o700, dir_fd=folder)
        finally:
            os.close(place)
        return os.open(name, _LISTED, dir_fd=folder)


def _exchange(old: int, new: int) -> int:
    os.close(old)
    return new


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _entries(folder: int) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
