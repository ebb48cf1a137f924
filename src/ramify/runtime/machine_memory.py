"""The memory that this process may have: the machine's, or that of its control group (a container, a job of Slurm)."""

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/meminfo")


def memory_limit() -> int:
    """Return the bytes that this process and its group may have together."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((whole, *(limit for limit, _ in _group_limits())))


def memory_left() -> int:
    """Return the bytes that are still to be had; on a system that does not report them (macOS) those of the whole machine."""
    return max(0, min((_left_in_machine(), *(limit - used for limit, used in _group_limits()))))


def _left_in_machine() -> int:
    if _MACHINE.is_file():
        for line in _MACHINE.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit of each control group around this process that has one, and the bytes of it that are taken."""
    for folder in _groups():
        try:
            limit, used = (
                int((folder / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current")
            )
            parts = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
            # The kernel gives back what was read from files and not looked at since.
            yield limit, used - int(parts.get("inactive_file", 0))
        except (OSError, ValueError):  # not Linux, version 1 of control groups, the root of them, or "max"
            continue


def _groups() -> Iterator[Path]:
    """Yield the folder of this process's control group (version 2) and those above it; a container sees its own as the root."""
    try:
        lines = _OWN_GROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::/"):
            own = _GROUPS / line.removeprefix("0::/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(_GROUPS))
