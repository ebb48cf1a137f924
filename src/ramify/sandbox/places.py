"""The paths that a snippet may read. Standard library only."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_SYSTEM = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
)
_INSTALLED = ("site-packages", "dist-packages")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def readable(packages: Sequence[str]) -> list[str]:
    """The existing paths among the system's libraries, the interpreter's installation and `packages`.

    No path lies below another.
    """
    wanted = (*_SYSTEM, f"{sys.base_prefix}/lib", str(Path(os.__file__).parent), *packages)
    found: list[str] = []
    for path in sorted(wanted):
        if Path(path).exists() and not any(path == above or path.startswith(f"{above}/") for above in found):
            found.append(path)
    return found


def installed() -> list[str]:
    """The folders of installed packages (site-packages and the like) below the paths that every snippet may read."""
    patterns = (f"{below}{name}" for below in ("", "python*/") for name in _INSTALLED)
    return sorted(
        {str(found) for pattern in patterns for place in readable(()) for found in Path(place).glob(pattern)}
    )


def devices() -> list[str]:
    """The devices that exist."""
    return [path for path in DEVICES if Path(path).exists()]
