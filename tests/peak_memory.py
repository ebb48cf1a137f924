"""Peak memory of this process while something runs."""

import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

_STATUS = Path("/proc/self/status")


def _resident():
    if not _STATUS.is_file():
        pytest.skip("no /proc to read the memory of a process from")
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@contextmanager
def grows_below(most):
    """Assert that resident memory grows by less than `most` bytes; it is read often, as its mark may not be resettable."""
    before, ended, peak = _resident(), threading.Event(), [0]

    def watch():
        while not ended.wait(0.01):
            peak[0] = max(peak[0], _resident())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
    assert peak[0] - before < most, f"grew by {(peak[0] - before) / 2**20:.0f} MiB"
