"""The folder through which weights reach the servers: one a run, removed at its end, or by the next run if that was killed."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from ramify.core.errors import MachineError

_PREFIX = "ramify-weights-"
_LOCK = ".lock"


class WeightsFolder:
    """A new folder, held by this process.

    Attributes:
        path: The folder.
    """

    def __init__(self, parent: Path) -> None:
        """Make it below `parent`, and remove what runs that were killed left there.

        Raises:
            MachineError: Nothing can be written there.
        """
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(parent)
            # mkdtemp's folder is for this user alone; in a folder that the user named, others may read.
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).absolute()
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise MachineError(
                f"engine.weights_dir: nothing can be written into {parent} ({error.strerror}); name another folder"
            ) from None

    def share(self) -> None:
        """Let servers of other users read it."""
        self.path.chmod(0o755)

    async def close(self) -> None:
        """Remove the folder; closing twice is allowed."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove folders of ours that no living process holds."""
    for folder in parent.glob(f"{_PREFIX}*"):
        about = folder.lstat()
        if folder.is_symlink() or not folder.is_dir() or about.st_uid != os.getuid():
            continue
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
