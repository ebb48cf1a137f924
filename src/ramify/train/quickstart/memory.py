"""How much memory a process has had."""

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far; its children's (a sandbox has about 20 MB) are apart.

    Linux tells it in /proc. What `getrusage` tells begins with the size that the parent had when it started the process.
    """
    if _STATUS.exists():
        (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
