"""Ctrl-C and SIGTERM from the first moment of a program on: an exception that cleans up on its way, never a traceback.

A run that can stop at a safe point takes the signals over for that long (`rollout.interrupts`). Imports as little as it can:
what it imports, Ctrl-C can still turn into a traceback.
"""

import os
import signal
import sys
from types import FrameType

from ramify.core.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.02
_HERE = __file__.rpartition("/")[0]
_MAKE_NOTHING = tuple(f"{_HERE}/{name}" for name in ("cli.py", "stopping.py", "commands/"))
"""Whose functions have made nothing that must go again while they import."""


class Stops:
    """While entered, the first signal raises `Stopped` in the main thread; the second ends the process at once.

    Attributes:
        number: Of the first signal; None: there was none.
    """

    def __init__(self, name: str, *, owns_process: bool) -> None:
        """`name` begins the line that is said; `owns_process`: nothing comes after the block that could take signals back."""
        self.number: int | None = None
        self._name, self._owns_process = name, owns_process
        self._previous: dict[int, object] = {}
        self._unraisable = sys.unraisablehook

    @property
    def line(self) -> str:
        """What is said of the first signal."""
        return f"{self._name}: {Stopped(self.number or 0)}"

    def __enter__(self) -> "Stops":
        for number in _SIGNALS:
            # One that is ignored (`nohup`, `&` in a script) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._take(number, self._on_signal)
        sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._owns_process:
            self.number = self.number or 0  # a signal at the interpreter's own end is no traceback either
            return
        sys.unraisablehook = self._unraisable
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _take(self, number: int, handler: object) -> None:
        try:
            previous = signal.signal(number, handler)  # type: ignore[arg-type]
        except ValueError:  # this is not the main thread, which alone may
            return
        self._previous.setdefault(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        self._stop(frame)

    def _stop(self, frame: FrameType | None) -> None:
        """Raise, but not within an import: extension modules abort the process when something is raised in them."""
        assert self.number is not None
        functions, imports = _under_way(frame)
        if imports and all(path.startswith(_MAKE_NOTHING) for path in functions):
            os.write(2, f"{self.line}\n".encode())
            os._exit(128 + self.number)
        if imports:
            self._stop_soon()
        else:
            raise Stopped(self.number)

    def _stop_soon(self) -> None:
        self._take(signal.SIGALRM, lambda _, frame: self._stop(frame))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    def _on_unraisable(self, event: object) -> None:
        """Python drops what is raised in a `__del__` or a callback of the collector: raise it again outside."""
        if isinstance(getattr(event, "exc_value", None), Stopped):
            self._stop_soon()
        else:
            self._unraisable(event)  # type: ignore[arg-type]


def _under_way(frame: FrameType | None) -> tuple[list[str], bool]:
    """The files of ramify whose functions are running, and whether an import is."""
    files: list[str] = []
    imports = False
    while frame is not None:
        code = frame.f_code
        imports |= code.co_filename.startswith("<frozen importlib")
        if code.co_name != "<module>" and code.co_filename.startswith(f"{_HERE}/"):
            files.append(code.co_filename)
        frame = frame.f_back
    return files, imports
