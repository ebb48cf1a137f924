"""The command line of a family of rows."""

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.harness.rows import Row, emit
from benchmarks.harness.threads import pin_threads

RowFunction: TypeAlias = Callable[[], Sequence[Row]]


def run_family(name: str, modules: Mapping[str, str], arguments: Sequence[str] | None = None) -> None:
    """Measure and print the rows of a family, in the order of `modules`.

    Args:
        name: Of the package under `benchmarks`.
        modules: For each row, the module whose `ROWS` (row name -> function) measures it. A function may return
            several rows; modules are imported only when one of their rows is wanted.
        arguments: Of the command line.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--rows", metavar="NAME,..", help=f"of {', '.join(modules)} (default: all)")
    options = parser.parse_args(arguments)
    wanted = options.rows.split(",") if options.rows else list(modules)
    if unknown := [row for row in wanted if row not in modules]:
        parser.error(f"--rows: {', '.join(unknown)}: expected names of {', '.join(modules)}")
    pin_threads()
    done: set[RowFunction] = set()
    for row in wanted:
        rows: Mapping[str, RowFunction] = importlib.import_module(modules[row]).ROWS
        if rows[row] not in done:
            done.add(rows[row])
            for measured in rows[row]():
                emit(measured, options.json)
