"""Claims: of all tasks, threads and processes that share a cache, only the holder of the claim asks the service.

A claim is a lock on one byte of a file beside the cache; the key determines which byte. The operating system releases
the lock when its owner ends, however it ends, so no claim is left behind and none needs a heartbeat.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from ramify.cache.keys import place

_SET_LOCK: Final = getattr(fcntl, "F_OFD_SETLK", None)
"""Linux's open file description locks. They belong to an open file, not to a process, so threads exclude each other too."""
_FLOCK: Final = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


class Claims:
    """Claims on keys. Without such locks every claim is granted, and each process asks for itself."""

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        if _SET_LOCK is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, digest: bytes) -> bool:
        """Try to claim a key; False if somebody else holds the claim."""
        if self._file is None:
            return True
        try:
            self._lock(fcntl.F_WRLCK, digest)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # the file system has no locks
            self.close()
        return True

    def free(self, digest: bytes) -> None:
        """Give a claim back."""
        if self._file is not None:
            self._lock(fcntl.F_UNLCK, digest)

    def close(self) -> None:
        """Give all claims back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self, kind: int, digest: bytes) -> None:
        if self._file is not None and _SET_LOCK is not None:
            fcntl.fcntl(self._file, _SET_LOCK, struct.pack(_FLOCK, kind, os.SEEK_SET, place(digest), 1, 0))
