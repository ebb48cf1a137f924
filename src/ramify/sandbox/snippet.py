"""Runs one snippet inside its jailed process and ends that process. Standard library only.

The value of a last bare expression is printed, as the tool of the papers does. Equal code gives equal output:
tracebacks name only frames of the snippet, `random` is seeded with 0, the hash seed is fixed by the zygote.
"""

import ast
import builtins
import contextlib
import gc
import linecache
import os
import random
import sys
import threading
import traceback
import types
from typing import NoReturn

FILE_NAME = "<snippet>"


def run(code: str) -> NoReturn:
    """Run `code` as a main program and end the process: status 0, or 1 after an error, or its own."""
    status = 1
    streams = (sys.stdout, sys.stderr)
    try:
        try:
            _execute(code)
            _join_threads()
            status = 0
        finally:
            error = sys.exc_info()[1]
            for stream in streams:
                # The program may have closed the stream or the file below it.
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            if error is not None:
                status = _report(error)
    finally:
        os._exit(status)


def _execute(code: str) -> None:
    module = types.ModuleType("__main__")
    names = module.__dict__
    names["__builtins__"] = builtins
    for name in [name for name in sys.modules if name.split(".")[0] == "ramify"]:
        del sys.modules[name]
    sys.modules["__main__"] = module
    sys.argv = [""]
    threading.excepthook = _report_thread
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    random.seed(0)
    gc.enable()
    linecache.cache[FILE_NAME] = (len(code), None, code.splitlines(keepends=True), FILE_NAME)

    tree = ast.parse(code, FILE_NAME)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, FILE_NAME, "exec", dont_inherit=True), names)
        return
    tree.body.pop()
    first_part = compile(tree, FILE_NAME, "exec", dont_inherit=True)
    expression = compile(ast.Expression(last.value), FILE_NAME, "eval", dont_inherit=True)
    exec(first_part, names)
    value = eval(expression, names)  # noqa: S307 - the jail is what makes this safe
    if value is not None:
        print(value)  # noqa: T201 - standard output is the result


def _join_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()


def _report(error: BaseException) -> int:
    """Write what Python would write of an uncaught exception; return the exit status."""
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
        item.stack[:] = [frame for frame in item.stack if frame.filename == FILE_NAME]
        pending.extend(inner for inner in (item.__cause__, item.__context__) if inner is not None)
        pending.extend(getattr(item, "exceptions", None) or ())
