"""Ctrl-C and SIGTERM from the first moment of a program on: an exception that cleans up on its way, never a traceback.

A run that can stop at a safe point takes the signals over for that long (`rollout.interrupts`).
"""

import _thread
import contextlib
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

from ramify.core.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stops:
    """While entered, the first signal raises `Stopped` in the main thread; the second ends the process at once.

    Attributes:
        number: Of the first signal; None: there was none.
    """

    def __init__(self, *, owns_process: bool) -> None:
        """`owns_process`: nothing comes after the block, so signals are never given back to Python."""
        self.number: int | None = None
        self._owns_process = owns_process
        self._previous: dict[int, Any] = {}
        self._unraisable = sys.unraisablehook

    def __enter__(self) -> "Stops":
        for number in _SIGNALS:
            # One that is ignored (`nohup`, `&` in a script) stays ignored; other threads than the main one may set none.
            if signal.getsignal(number) is not signal.SIG_IGN:
                with contextlib.suppress(ValueError):
                    self._previous[number] = signal.signal(number, self._on_signal)
        sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owns_process:
            self.number = self.number or 0  # a signal at the interpreter's own end is no traceback either
            return
        sys.unraisablehook = self._unraisable
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        raise Stopped(number)

    def _on_unraisable(self, event: Any) -> None:  # noqa: ANN401 - sys.UnraisableHookArgs is no class
        """Python drops what is raised in a `__del__` or a callback of the collector: raise it again outside."""
        if isinstance(event.exc_value, Stopped):
            self.number = None
            _thread.interrupt_main(event.exc_value.number)
        else:
            self._unraisable(event)
