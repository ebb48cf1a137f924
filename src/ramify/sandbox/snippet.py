"""Runs one snippet inside its jailed process and ends that process. Standard library only.

The value of a final bare expression is printed, as the papers' tool does. Equal code gives equal output: tracebacks show
only frames of the snippet, `random` is seeded with 0, and the zygote fixes the hash seed.

Cells are earlier snippets. They are run first, in the same process and folder, to restore the state that they left;
their output is dropped. A mark on standard output, before the first cell and after each one, shows how many cells ran.
The mark is random and new for each call. A cell that behaves differently this time and writes to the real output breaks
the sequence of marks.
"""

import ast
import builtins
import contextlib
import gc
import io
import linecache
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

FILE_NAME = "<snippet>"
_PREAMBLE = "<preamble>"
_CELL_PREFIX = "<earlier program "
NOT_REPLAYED = "an earlier program, run again to restore the state, ended the process or broke the replay"
"""The note on a program that ended without error but before the last mark."""


def run(code: str, cells: Sequence[str], mark: str, names: dict[str, Any]) -> NoReturn:
    """Run `code` as the main program with `names`, then end the process: status 0, 1 after an error, or the program's own.

    With cells, standard output begins with `mark`: once, and once more for each cell that ran. The program's own
    standard error comes after one mark.
    """
    status = 1
    try:
        gc.enable()
        status = perform(code, cells, mark, names)
    finally:
        os._exit(status)


def perform(code: str, cells: Sequence[str], mark: str, names: dict[str, Any]) -> int:
    """Run `cells` and then `code` in `names`; print the value of a final expression or the error. Returns the exit status."""
    streams = (sys.stdout, sys.stderr)
    failure = None
    try:
        if cells:
            _replay(cells, mark.encode(), names)
        value = _execute(code, FILE_NAME, names)
        if value is not None:
            print(value)  # noqa: T201 - standard output is the result
        _join_threads()
    except BaseException as error:  # noqa: BLE001 - an error of the program
        failure = error
    _flush(streams)
    return 0 if failure is None else _report(failure)


def prepare() -> dict[str, Any]:
    """Create the main module and everything else that all snippets share, in the zygote; return the module's names."""
    seed()
    module = types.ModuleType("__main__")
    names = module.__dict__
    names["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = [""]
    threading.excepthook = _report_thread
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    return names


class PreambleError(Exception):
    """The user's preamble failed, so no program may run."""


def run_preamble(preamble: str, names: dict[str, Any]) -> None:
    """Run the user's preamble in the names that programs start with, and seed again.

    Raises:
        PreambleError: It raised, exited, or left a thread running, which forked programs would not have.
    """
    if not preamble:
        return
    linecache.cache[_PREAMBLE] = (len(preamble), None, preamble.splitlines(keepends=True), _PREAMBLE)
    try:
        exec(compile(preamble, _PREAMBLE, "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001 - it is the user's code
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame.lineno for frame in frames if frame.filename == _PREAMBLE]
        line = f", line {own[-1]}" if own else ""
        reason = "".join(traceback.format_exception_only(error)).strip()
        raise PreambleError(f"tools.python.preamble{line}: {reason}") from None
    if threading.active_count() > 1:
        raise PreambleError("tools.python.preamble: it left a thread running, which programs would not have")
    seed()


def seed() -> None:
    """Seed the global random generators of `random` and numpy."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def new_mark() -> str:
    """Return a new mark that no program can guess."""
    return f"\x1e{os.urandom(8).hex()}"


def failed_cell(num_marks: int, num_cells: int) -> int | None:
    """Return the index of the cell that did not finish, or None; `num_marks` is the number of marks on standard output."""
    return num_marks - 1 if 0 < num_marks <= num_cells else None


def own_errors(text: str, mark: str, failed: int | None) -> str:
    """Return the standard error of the program itself, or of the cell `failed`, with Python's traceback."""
    before, separator, after = text.partition(mark)
    return after if separator else before if failed is None else ""


def _execute(code: str, file_name: str, names: dict[str, Any]) -> object:
    """Run `code`; returns the value of a final bare expression, or None."""
    linecache.cache[file_name] = (len(code), None, code.splitlines(keepends=True), file_name)
    tree = ast.parse(code, file_name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, file_name, "exec", dont_inherit=True), names)
        return None
    tree.body.pop()
    first_part = compile(tree, file_name, "exec", dont_inherit=True)
    expression = compile(ast.Expression(last.value), file_name, "eval", dont_inherit=True)
    exec(first_part, names)
    value: object = eval(expression, names)  # noqa: S307 - the jail is what makes this safe
    return value


def _replay(cells: Sequence[str], mark: bytes, names: dict[str, Any]) -> None:
    """Run each cell as it ran when it was the program, drop its output, and write a mark after it."""
    saved = (os.dup(1), os.dup(2))
    null = os.open(os.devnull, os.O_WRONLY)
    streams = (sys.stdout, sys.stderr, sys.stdout.buffer, sys.stderr.buffer)
    _point_to(null)
    os.write(saved[0], mark)
    try:
        for index, cell in enumerate(cells):
            try:
                value = _execute(cell, f"{_CELL_PREFIX}{index + 1}>", names)
                if value is not None:
                    print(value)  # noqa: T201 - a value's __str__ may change the state
                _join_threads()
            except SystemExit as error:
                if error.code not in (None, 0):
                    raise
            finally:
                _flush(streams[:2])  # to wherever the cell redirected its descriptors
                _point_to(null)
                _flush(streams)
            os.write(saved[0], mark)
    finally:
        _flush_own_streams()
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(null)
        os.write(2, mark)


def _point_to(target: int) -> None:
    """Redirect descriptors 1 and 2 to `target`; the program may have closed or redirected them."""
    for descriptor in (1, 2):
        os.dup2(target, descriptor)


def _flush_own_streams() -> None:
    """Flush the streams on descriptors 1 and 2 that the program has opened itself."""
    for item in gc.get_objects():
        if issubclass(type(item), io.IOBase):
            with contextlib.suppress(Exception):
                if item.fileno() in (1, 2):
                    item.flush()


def _flush(streams: Iterable[Any]) -> None:
    for stream in streams:
        # The program may have closed the stream or its file, or overridden its flush method.
        with contextlib.suppress(OSError, ValueError):
            type(stream).flush(stream)


def _join_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()


def _report(error: BaseException) -> int:
    """Write what Python would write for an uncaught exception; returns the exit status."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        text = f"{error.code}\n"
    else:
        summary = traceback.TracebackException.from_exception(error, compact=True)
        _keep_own_frames(summary)
        text = "".join(summary.format() if summary.stack else summary.format_exception_only())
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(2, data) :]
    return 1


def _report_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        _report(arguments.exc_value)


def _keep_own_frames(summary: traceback.TracebackException) -> None:
    pending = [summary]
    while pending:
        item = pending.pop()
        item.stack[:] = [
            frame
            for frame in item.stack
            if frame.filename == FILE_NAME or frame.filename.startswith(_CELL_PREFIX)
        ]
        pending.extend(inner for inner in (item.__cause__, item.__context__) if inner is not None)
        pending.extend(getattr(item, "exceptions", None) or ())
