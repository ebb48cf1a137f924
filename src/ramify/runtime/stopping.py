"""Handles Ctrl-C and SIGTERM from the start of the program: they raise an exception, so that cleanup code runs.

While a run can stop at a safe point, it handles the signals itself (`runtime.agent_loop`). This module imports as
little as possible, because Ctrl-C during its own imports still gives a traceback.
"""

import os
import signal
import sys
from types import FrameType

from ramify.core.errors import SignalInterrupt

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.02
_PACKAGE = __file__.rpartition("/runtime/")[0]
_MAKE_NOTHING = tuple(f"{_PACKAGE}/{name}" for name in ("cli.py", "runtime/stopping.py", "commands/"))
"""Modules whose functions, while they import others, have nothing to clean up yet."""


class Stops:
    """While entered, the first signal raises `SignalInterrupt` in the main thread; the second ends the process at once.

    Attributes:
        number: Number of the first signal; None if there was none.
    """

    def __init__(self, name: str, *, owns_process: bool) -> None:
        """Prepare to handle signals.

        Args:
            name: Prefix of the message about a signal.
            owns_process: The process ends after the block, so the old handlers need not be restored.
        """
        self.number: int | None = None
        self._name, self._owns_process = name, owns_process
        self._previous: dict[int, object] = {}
        self._unraisable = sys.unraisablehook

    @property
    def line(self) -> str:
        """The message about the first signal."""
        return f"{self._name}: {SignalInterrupt(self.number or 0)}"

    def __enter__(self) -> "Stops":
        for number in _SIGNALS:
            # A signal that is ignored (`nohup`, `&` in a script) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._take(number, self._on_signal)
        sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._owns_process:
            self.number = (
                self.number or 0
            )  # so that a signal during the interpreter's exit gives no traceback
            return
        sys.unraisablehook = self._unraisable
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _take(self, number: int, handler: object) -> None:
        try:
            previous = signal.signal(number, handler)  # type: ignore[arg-type]
        except ValueError:  # only the main thread may set handlers
            return
        self._previous.setdefault(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        self._stop(frame)

    def _stop(self, frame: FrameType | None) -> None:
        """Raise `SignalInterrupt`, but not during an import: extension modules may abort the process at an exception."""
        assert self.number is not None
        functions, imports = _stack(frame)
        if imports and all(path.startswith(_MAKE_NOTHING) for path in functions):
            os.write(2, f"{self.line}\n".encode())
            os._exit(128 + self.number)
        if imports:
            self._stop_soon()
        else:
            raise SignalInterrupt(self.number)

    def _stop_soon(self) -> None:
        self._take(signal.SIGALRM, lambda _, frame: self._stop(frame))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    def _on_unraisable(self, event: object) -> None:
        """Raise `SignalInterrupt` again soon: Python drops exceptions in a `__del__` or a callback of the garbage collector."""
        if isinstance(getattr(event, "exc_value", None), SignalInterrupt):
            self._stop_soon()
        else:
            self._unraisable(event)  # type: ignore[arg-type]


def _stack(frame: FrameType | None) -> tuple[list[str], bool]:
    """Return the files of ramify's functions on the stack, and True if an import is running."""
    files: list[str] = []
    imports = False
    while frame is not None:
        code = frame.f_code
        imports |= code.co_filename.startswith("<frozen importlib")
        if code.co_name != "<module>" and code.co_filename.startswith(f"{_PACKAGE}/"):
            files.append(code.co_filename)
        frame = frame.f_back
    return files, imports
