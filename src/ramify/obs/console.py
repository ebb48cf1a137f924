"""What a run prints: the only module that writes to the console."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ramify.net.secrets import shown

PLAIN_INTERVAL_SECONDS = 5.0


class Phase:
    """A part of a run with a known number of steps, and the values shown beside its progress."""

    def __init__(self, name: str, total: int, draw: Callable[["Phase"], None]) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self.shown: dict[str, float | str] = {}
        self.waiting = ""
        self._draw = draw

    def advance(self, n: int = 1, waiting: str | None = None, **shown: float | str) -> None:
        """Count `n` steps as done; show these values, and what the run is waiting for ("3 tool calls").

        `n` = 0 only refreshes. A value stays until a new one is given. `waiting`: None keeps the text, "" clears it.
        """
        self.done += n
        self.shown.update(shown)
        if waiting is not None:
            self.waiting = waiting
        self._draw(self)

    @property
    def status(self) -> str:
        """The values as text: "loss 0.42, waiting for 3 tool calls"."""
        parts = [f"{name} {_short(value)}" for name, value in self.shown.items()]
        if self.waiting:
            parts.append(f"waiting for {self.waiting}")
        return ", ".join(parts)


class _QuietConsole(Console):
    """Stops printing when its reader is gone (`| head`), which must not end the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # The interpreter flushes standard output once more at its end.
        self.file = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
        sys.stdout = self.file


class RunConsole:
    """Progress bars on a terminal; otherwise one plain line every few seconds and at the end of a phase."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = _QuietConsole(file=stream or sys.stdout, highlight=False, markup=False, emoji=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._clock = clock

    def note(self, text: str) -> None:
        """Write one or several lines; quoted text cannot control the terminal (`net.secrets.shown`)."""
        self._console.print(Text(shown(text, keep="\n")), soft_wrap=True)

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Phase]:
        """Show the progress of a phase while the block runs; one phase at a time."""
        show = self._bar if self._live else self._lines
        with show(name, total) as phase:
            yield phase

    @contextmanager
    def _bar(self, name: str, total: int) -> Iterator[Phase]:
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            console=self._console,
        )
        task = progress.add_task(shown(name), total=total, status="")

        def draw(phase: Phase) -> None:
            progress.update(TaskID(task), completed=phase.done, status=shown(phase.status))

        with progress:
            phase = Phase(name, total, draw)
            yield phase
            phase.advance(0, waiting="")

    @contextmanager
    def _lines(self, name: str, total: int) -> Iterator[Phase]:
        started = last = self._clock()

        def draw(phase: Phase) -> None:
            nonlocal last
            now = self._clock()
            if now - last >= PLAIN_INTERVAL_SECONDS:
                last = now
                self._line(phase, now - started, "")

        phase = Phase(name, total, draw)
        end = "stopped"
        try:
            yield phase
            end, phase.waiting = "done", ""
        finally:
            self._line(phase, self._clock() - started, end)

    def _line(self, phase: Phase, seconds: float, end: str) -> None:
        facts = [f"{phase.name} {phase.done}/{phase.total}", f"{seconds:.0f} s", end, phase.status]
        self.note("  ".join(fact for fact in facts if fact))


def _short(value: float | str) -> str:
    """Four significant digits, whole numbers as they are."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
