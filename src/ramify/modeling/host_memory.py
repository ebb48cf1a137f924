"""Large tensors on a CPU in memory of their own, which goes back to the system when they are freed."""

import ctypes
import sys

_MMAP_THRESHOLD = -3
"""glibc's M_MMAP_THRESHOLD."""
LARGE = 4 << 20
"""Bytes. Smaller tensors come from the heap, where freed ones leave gaps; below this, mapping costs more time than it is worth."""


def map_large_tensors() -> None:
    """Have glibc map tensors of `LARGE` bytes and more for the whole process; with another C library nothing changes.

    By itself glibc raises its threshold to 32 MiB as tensors are freed. Then the activations of a row lie in the heap, and
    gaps that no tensor fits make a process rise by up to twice what its tensors take.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE)
