"""How much more memory a piece of work has at its peak than before it (Linux). Imports nothing of ramify."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"


def peak_above(work: Callable[[], object]) -> int:
    """Bytes that this process's resident memory rises by at most while `work` runs.

    What earlier work has freed goes back to the system first.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
