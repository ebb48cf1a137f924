"""How much memory a process has had."""

import resource
import sys


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far; its children's (a sandbox has about 20 MB) are apart.

    The system's figure for children is of no use: it starts from the size of the parent at the fork.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
