"""Who may use the folder of a run: an empty one, one of ramify's own in which nothing has been made yet, or a run that goes on.

A claim marks the folder as the run's own while it is still empty, in its lock. Whatever a start that failed or was killed
leaves there (logs of servers, caches, a recipe without a manifest) then never blocks the next start, and a folder with
files of somebody else is refused.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import ConfigError
from ramify.files.durable import (
    LOCK,
    RECIPE,
    entries,
    locked_folder,
    make_folder,
    naming,
    require_plain_files,
)
from ramify.runs.manifest import MANIFEST

_MOST_MARK = 64
"""Bytes of a lock that are read."""


@dataclass(frozen=True, slots=True)
class RunKind:
    """A kind of run folder.

    Attributes:
        name: Word in the mark; a folder that another kind of run has marked is not free.
        what: Its content, for messages.
        has_begun: Return True if the folder holds results of this kind, from which only a resumed run may go on.
        can_resume: The command has --resume.
    """

    name: str
    what: str
    has_begun: Callable[[Path], bool]
    can_resume: bool = True

    def check(self, path: Path, resume: bool) -> None:
        """Check that a run may use the folder `run.dir`; writes nothing.

        Raises:
            ConfigError: It holds results and `resume` is false, it holds something else, or it holds links.
        """
        if not path.exists():
            return
        if not path.is_dir():
            raise ConfigError(f"run.dir: {path} is a file; expected a new or empty folder")
        begun = self.has_begun(path)
        if begun and not (path / RECIPE).exists():
            raise ConfigError(
                f"run.dir: {path} holds {self.what} without its {RECIPE}; put that file back, or name a new folder"
            )
        if begun and not resume:
            advice = "go on with --resume or name a new folder" if self.can_resume else "name a new folder"
            raise ConfigError(f"run.dir: {path} holds {self.what}; {advice}")
        if not begun and entries(path) and _read_mark(path) != self._mark:
            raise ConfigError(f"run.dir: {path} exists and is not empty; expected a new or empty folder")
        require_plain_files("run.dir", path)

    @contextmanager
    def claim(self, path: Path, check: Callable[[], None]) -> Iterator[None]:
        """Make the folder `run.dir`, mark it, and hold it for this process alone while the block runs.

        `check` raises if the run may not use the folder. It is called before anything is written, and again once the folder
        is held, since another process may have used it in between. A run that has left nothing but its recipe removes that too.

        Raises:
            ConfigError: The folder cannot be made or written, or another process holds it.
        """
        check()
        is_new = not path.exists()
        make_folder("run.dir", path)
        with locked_folder("run.dir", path):
            check()
            try:
                if not self.has_begun(path):
                    _write_mark(path, self._mark)
                yield
            finally:
                if not self.has_begun(path):
                    _clean_up(path, is_new)

    @property
    def _mark(self) -> bytes:
        return f"ramify {self.name}\n".encode()


def _read_mark(path: Path) -> bytes:
    # A lock that is a link, a pipe or a folder is none of ours.
    with suppress(OSError):
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(lock, _MOST_MARK)
        finally:
            os.close(lock)
    return b""


def _write_mark(path: Path, mark: bytes) -> None:
    lock_path = path / LOCK
    with naming(lock_path):
        lock = os.open(lock_path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(lock, mark, 0)
            os.ftruncate(lock, len(mark))
            # Before anything else is in the folder: after a power cut it must still be known as ours.
            os.fsync(lock)
        finally:
            os.close(lock)


def _clean_up(path: Path, is_new: bool) -> None:
    """Remove a recipe that nothing was made with; other things stay for the user to read, and so does the mark."""
    if entries(path) - {RECIPE, MANIFEST}:
        return
    for name in (RECIPE, MANIFEST, LOCK):
        (path / name).unlink(missing_ok=True)
    if is_new:
        # Not if an unfinished file is left there, or another process has come meanwhile.
        with suppress(OSError):
            path.rmdir()
