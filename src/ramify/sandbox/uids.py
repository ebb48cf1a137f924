"""Unused user ids: a zygote that runs as root gives each snippet one, so that its tasks can be counted."""

import os
import sys

SPARE, NUM_SPARE = 0x60000000, (1 << 22) + 1
"""The first id and their number: one for each process id that Linux can assign."""


def has_spare() -> bool:
    """Whether this process can use these ids; it tries the first and the last."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    real = os.getresuid()[0]
    try:
        for uid in (SPARE, SPARE + NUM_SPARE - 1, real):
            os.setresuid(uid, -1, -1)
    except OSError:
        return False
    return True
