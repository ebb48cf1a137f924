"""Rows 5 and 5.sympy: isolated Python calls a second and core, against a fresh interpreter for each call.

Both sides run the same program, one side after the other, everything held to one core. A figure is calls over
processor seconds: user and system time of this process (its event loop too) and of all processes below it, which a
quiet core spends in as many seconds. Calls over wall time on that core are printed beside it; other work of the
machine slows those.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness.interleave import MIN_RUNS, interleave, medians
from benchmarks.harness.rows import Row
from ramify.core.protocols import SandboxStatus
from ramify.sandbox.levels import MAX_LEVEL, detect_level, why_not
from ramify.sandbox.pool import ProcessSandbox, open_sandbox

_BARE = "print(sum(i * i for i in range(100)))"
_SYMPY = "import sympy\nprint(sympy.Symbol('x') ** 2)"
_EXPAND = "import sympy\nx = sympy.Symbol('x')\nprint(sympy.expand((x + 1) ** 3))"
_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


def bare() -> Sequence[Row]:
    """Row 5."""
    return [_measure("5", _BARE, num_ours=400, num_peer=40, times=4.0, rate=250.0)]


def with_sympy() -> Sequence[Row]:
    """Row 5.sympy: what loading sympy costs; and, without a target, with a little algebra on both sides."""
    return [
        _measure("5.sympy", _SYMPY, num_ours=150, num_peer=4, times=35.0, rate=150.0),
        _measure("5.sympy.expand", _EXPAND, num_ours=150, num_peer=4, times=None, rate=None),
    ]


def _measure(
    row: str, code: str, num_ours: int, num_peer: int, times: float | None, rate: float | None
) -> Row:
    """Measure the peer and every level that this machine reaches; the default level is the row's figure."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    walls: dict[str, list[float]] = {}
    try:
        with asyncio.Runner() as runner:
            levels = [level for level in range(1, MAX_LEVEL + 1) if why_not(level) is None]
            sandboxes = {f"L{level}": open_sandbox(level, level) for level in levels}
            sides: dict[str, Callable[[], float]] = {"peer": lambda: _fresh(code, num_peer, walls)}
            for name, sandbox in sandboxes.items():
                sides[name] = lambda name=name, sandbox=sandbox: runner.run(  # type: ignore[misc]
                    _forked(name, sandbox, code, num_ours, walls)
                )
            runs = interleave(sides)
            for sandbox in sandboxes.values():
                runner.run(sandbox.close())
    finally:
        os.sched_setaffinity(0, cores)
    default = f"L{detect_level()}"
    middle = medians(runs)
    ours, peer = middle[default], middle["peer"]
    recorded = {name: figures[-MIN_RUNS:] for name, figures in walls.items()}
    return Row(
        row,
        "isolated Python calls a processor second: ours / a fresh interpreter",
        ours,
        peer,
        ours / peer,
        "none" if times is None else f"at least {times:g}, and ours at least {rate:g}",
        ours / peer >= (times or 0.0) and ours >= (rate or 0.0),
        {"ours": runs[default], **runs, **{f"{name}.wall": figures for name, figures in recorded.items()}},
        {
            "level": default,
            "ratio_of_each_level": {name: middle[name] / peer for name in sandboxes},
            "calls_a_wall_second": {name: statistics.median(recorded[name]) for name in recorded},
            "code": code,
            "calls_of_a_run": {"ours": num_ours, "peer": num_peer},
            "at_once": {"ours": 2 * (os.cpu_count() or 1), "peer": 1},
            "cores": 1,
            "peer": "python -c with this environment's interpreter and packages",
        },
    )


async def _forked(
    name: str, sandbox: ProcessSandbox, code: str, count: int, walls: dict[str, list[float]]
) -> float:
    await sandbox.run(code, _SECONDS)
    processor, wall = _processor_seconds(), time.perf_counter()
    results = await asyncio.gather(*(sandbox.run(code, _SECONDS) for _ in range(count)))
    walls.setdefault(name, []).append(count / (time.perf_counter() - wall))
    spent = _processor_seconds() - processor
    if any(result.status is not SandboxStatus.OK for result in results):
        raise RuntimeError(f"a call failed: {results[0]}")
    return count / spent


def _fresh(code: str, count: int, walls: dict[str, list[float]]) -> float:
    processor, wall = _processor_seconds(), time.perf_counter()
    for _ in range(count):
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    walls.setdefault("peer", []).append(count / (time.perf_counter() - wall))
    return count / (_processor_seconds() - processor)


def _processor_seconds() -> float:
    """Sum the processor time of this process, the children that it has waited for and all processes below it."""
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in used)
    pending = _children(os.getpid())
    while pending:
        pid = pending.pop()
        # Fields 14 to 17: user and system time of itself and of its children that have ended.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / _TICKS
        pending += _children(pid)
    return total


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


ROWS = {"5": bare, "5.sympy": with_sympy}
