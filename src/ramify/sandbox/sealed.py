"""Buffers that are empty in forked children. Programs and their output pass through them. Standard library only.

A child is a copy of the zygote, with everything in its heap, freed or not, and a program can search its own memory. So
no program and no output may ever reach that heap. They are moved between descriptors and sealed buffers, and only
numbers become Python objects.
"""

import mmap
import os
import sys

_WIPE_ON_FORK, _KEEP_ON_FORK = 18, 19


class Sealed:
    """A buffer of `size` bytes, of which the first `num_bytes` are in use.

    Raises:
        OSError: The kernel cannot wipe memory in children (Linux can since 4.14).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_bytes = 0
        self._memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._advise(_WIPE_ON_FORK)

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        return self.num_bytes == self.size

    @property
    def used(self) -> memoryview:
        """A view of the used part; nothing is copied."""
        return self._view[: self.num_bytes]

    def read_from(self, descriptor: int) -> int:
        """Read once and append; returns the number of bytes, 0 at the end of the file.

        Raises:
            BlockingIOError: There is nothing to read yet.
        """
        with self._view[self.num_bytes : self.size] as room:
            count = os.readv(descriptor, [room])
        self.num_bytes += count
        return count

    def add(self, data: memoryview) -> None:
        """Add a copy of `data`, which must fit."""
        self._view[self.num_bytes : self.num_bytes + len(data)] = data
        self.num_bytes += len(data)

    def drop(self, count: int) -> None:
        """Remove the first `count` bytes."""
        self.num_bytes -= count
        if count and self.num_bytes:
            self._memory.move(0, count, self.num_bytes)

    def clear(self) -> None:
        """Mark the buffer as empty."""
        self.num_bytes = 0

    def show_to_next_child(self) -> None:
        """Let the next fork copy this buffer."""
        self._advise(_KEEP_ON_FORK)

    def free(self) -> None:
        """Give the memory back."""
        self._view.release()
        self._memory.close()

    def _advise(self, advice: int) -> None:
        if sys.platform == "linux":
            self._memory.madvise(advice)
