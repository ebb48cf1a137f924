"""Folders that hostile code fills, moves and replaces. Standard library only: the zygote uses it too."""

import contextlib
import os
from pathlib import Path

_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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

        Works without recursion: nested folders are first moved up into this one, so neither their depth nor the length of
        their paths matters. They get names that whoever filled the folder could not foresee and take.
        """
        with contextlib.suppress(OSError):
            # Made with mode 0 it could be neither listed nor changed by its owner.
            os.fchmod(self.descriptor, 0o700)
        pending = self._clear(self.descriptor)
        while pending:
            name = pending.pop()
            with contextlib.suppress(OSError):
                folder = os.open(name, _LISTED, dir_fd=self.descriptor)
                try:
                    pending += self._clear(folder)
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=self.descriptor)

    def remove(self) -> None:
        """Empty it, let go of it, and remove what stands at its path if that is an empty folder or a link."""
        self.empty()
        os.close(self.descriptor)
        with contextlib.suppress(OSError):
            path = Path(self.path)
            path.unlink() if path.is_symlink() else path.rmdir()

    def _clear(self, folder: int) -> list[str]:
        """Remove the files of a folder; its folders are moved, and their new names returned."""
        moved = []
        for name, is_folder in _entries(folder):
            with contextlib.suppress(OSError):
                if not is_folder:
                    os.unlink(name, dir_fd=folder)
                    continue
                os.chmod(name, 0o700, dir_fd=folder)
                new = os.urandom(16).hex()
                os.rename(name, new, src_dir_fd=folder, dst_dir_fd=self.descriptor)
                moved.append(new)
        return moved


def _entries(folder: int) -> list[tuple[str, bool]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
