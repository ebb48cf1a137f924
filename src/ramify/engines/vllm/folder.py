"""Folders of one run: of the weights that reach the servers, and of the servers' sockets.

Each is locked while its process lives and removed at the end, or by the next run if that process was killed.
"""

import fcntl
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ramify.core.errors import MachineError
from ramify.files.durable import lock_file

SOCKETS = "VLLM_RPC_BASE_PATH"
"""The variable of a server, and of all that it starts, with the folder of its sockets."""
_SOCKETS_PREFIX = "ramify-sockets-"
_END_SECONDS, _POLL_SECONDS = 10.0, 0.02
"""A killed process gives its GPU's memory back within seconds."""
_LOCK = ".lock"
_NEW_LOCK = ".lock.new"
_MAX_SOCKET_BYTES = 103
"""Longest path of a Unix socket on macOS; Linux takes 107."""
_LONGEST_NAME = 40
"""vLLM's own sockets are named by 36 characters."""


class LockedFolder:
    """A new folder for this user alone, locked by this process.

    Attributes:
        path: The folder.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        """Make it below `parent`, and remove those of the same prefix that killed processes left there; may raise OSError."""
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute()  # mode 0700
        self._lock = os.open(self.path / _NEW_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        lock_file(self._lock, wait=True)
        # Renamed once it is locked, or another process could take it for abandoned.
        (self.path / _NEW_LOCK).rename(self.path / _LOCK)

    async def close(self) -> None:
        """Remove the folder; closing twice is allowed."""
        self.remove()

    def remove(self) -> None:
        """Remove the folder; a second time does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1


class WeightsFolder(LockedFolder):
    """The folder through which weights reach the servers."""

    def __init__(self, parent: Path) -> None:
        """Make it below `parent`.

        Raises:
            MachineError: Nothing can be written there.
        """
        try:
            super().__init__(parent, "ramify-weights-")
        except OSError as error:
            raise MachineError(
                f"engine.weights_dir: nothing can be written into {parent} ({error.strerror}). Name another folder."
            ) from None

    def share(self) -> None:
        """Let servers of other users read it."""
        self.path.chmod(0o755)


class SocketFolder(LockedFolder):
    """A folder of sockets: of a server's, or of a file through which processes find each other's. No other user can enter it."""

    def __init__(self) -> None:
        """Make it where temporary files are, or in /tmp if that path is too long for a socket.

        Raises:
            MachineError: Nothing can be written there.
        """
        parent = Path(tempfile.gettempdir())
        longest = parent / f"{_SOCKETS_PREFIX}12345678" / ("n" * _LONGEST_NAME)
        if len(os.fsencode(longest)) > _MAX_SOCKET_BYTES:
            parent = Path("/tmp")
        try:
            super().__init__(parent, _SOCKETS_PREFIX)
        except OSError as error:
            raise MachineError(
                f"TMPDIR: no folder for the servers' sockets can be made in {parent} ({error.strerror}). Set TMPDIR to a "
                "folder with a short path."
            ) from None


def end_abandoned_servers() -> None:
    """Kill the servers of this user's runs that were killed, before anything asks how much memory of a GPU is free."""
    for parent in {Path(tempfile.gettempdir()), Path("/tmp")}:
        _remove_abandoned(parent, _SOCKETS_PREFIX)


def _end_servers(folder: Path) -> None:
    """Kill servers of this folder, whose run was killed (Linux): one that hangs keeps its GPU's memory, whatever signal it got."""
    variable = f"{SOCKETS}={folder}".encode()
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                processes.append(process)
    until = time.monotonic() + _END_SECONDS
    while any(map(_lives, processes)) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _lives(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove this user's folders that no living process holds."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            about = folder.lstat()
            if folder.is_symlink() or not folder.is_dir() or about.st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_servers(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
