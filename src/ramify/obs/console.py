"""Output of a run: the only module that writes to the console."""

import html
import importlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ramify.net.secrets import redact, shown
from ramify.runtime.progress import duration

LOG_INTERVAL_SECONDS = 60.0
"""Time between two lines of progress if the console is no terminal."""
NOTEBOOK_INTERVAL_SECONDS = 0.2


class Phase:
    """A part of a run with a known number of steps, and the values shown beside its progress."""

    def __init__(
        self,
        name: str,
        total: int,
        draw: Callable[["Phase"], None],
        clock: Callable[[], float] = time.monotonic,
        done: int = 0,
    ) -> None:
        self.name = name
        self.total = total
        self.done = done
        self.shown: dict[str, float | str] = {}
        self.waiting = ""
        self._draw, self._clock = draw, clock
        self._done_before = done
        self._began = self._last_step = clock()

    def advance(self, n: int = 1, waiting: str | None = None, **shown: float | str) -> None:
        """Count `n` steps as done; show these values and the reason for waiting ("3 tool calls").

        `n` = 0 only refreshes. A value stays until the next one. `waiting`: None keeps the text, "" clears it.
        """
        if n:
            self.done += n
            self._last_step = self._clock()
        self.shown.update(shown)
        if waiting is not None:
            self.waiting = waiting
        self._draw(self)

    @property
    def seconds(self) -> float:
        """Seconds since the phase began."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Seconds until its end at the mean pace of its steps so far; None before the first step, and where these have passed."""
        steps = self.done - self._done_before
        if not steps:
            return None
        at_last_step = (self.total - self.done) * (self._last_step - self._began) / steps
        left = at_last_step - (self._clock() - self._last_step)
        return left if left > 0 else None

    @property
    def status(self) -> str:
        """The values as text: "loss 0.42, waiting for 3 tool calls"."""
        parts = [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.shown.items()
        ]
        if self.waiting:
            parts.append(f"waiting for {self.waiting}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The phases of a long command in their order, and the share of the whole time that each is expected to take."""

    shares: Mapping[str, float]
    began: float

    def ordinal(self, name: str) -> str:
        """Return "2/4" for the second of four phases, "" for a phase outside the plan."""
        names = list(self.shares)
        return f"{names.index(name) + 1}/{len(names)}" if name in names else ""

    def seconds_left(self, name: str, in_phase: float, now: float) -> float | None:
        """Return the seconds until the end of the plan if phase `name` ends in `in_phase` seconds."""
        names = list(self.shares)
        if name not in names or name == names[-1]:
            return None
        until_its_end = sum(self.shares[phase] for phase in names[: names.index(name) + 1])
        whole = (now - self.began + in_phase) * sum(self.shares.values()) / until_its_end
        return whole - (now - self.began)


class _QuietConsole(Console):
    """Stops printing when its reader is gone (`| head`), which must not end the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        broken, self.file = self.file, Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
        # The interpreter flushes both streams once more at its end. The other one may still be read.
        if sys.stdout is broken:
            sys.stdout = self.file
        if sys.stderr is broken:
            sys.stderr = self.file


class RunConsole:
    """Progress bars on a terminal and in a notebook; elsewhere a log: lines with the time of day, at most one of progress a minute.

    Args:
        stream: The output; None: standard output.
        clock: Seconds, for durations.
        stamp: The time of day, for the lines of a log.
        quiet: Show neither progress nor notes, except warnings.
        as_json: Standard output is for one JSON object (`record`); everything else goes to standard error.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        stamp: Callable[[], str] = lambda: time.strftime("%Y-%m-%d %H:%M:%S  "),
        *,
        quiet: bool = False,
        as_json: bool = False,
    ) -> None:
        output = stream or (sys.stderr if as_json else sys.stdout)
        if isinstance(output, io.TextIOWrapper):
            # A note that quotes a letter which the stream lacks must not end a run.
            output.reconfigure(errors="backslashreplace")
        self._console = _QuietConsole(file=output, highlight=False, markup=False, emoji=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._notebook = None if stream or quiet or as_json else _notebook_display()
        self._clock, self._stamp = clock, stamp
        self._quiet, self._as_json = quiet, as_json
        self._plan: _Plan | None = None
        self._last_line = 0.0

    def note(self, text: str) -> None:
        """Write a line about the run (or several lines), safe for a terminal whoever it quotes (`net.secrets.shown`)."""
        if not self._quiet or text.startswith("warning"):
            self._write(text if self._live or self._notebook else self._stamp() + text)

    def result(self, text: str) -> None:
        """Write the result of a command: as `note`, but never with the time of day. Left out where a JSON object has it."""
        if not self._as_json:
            self._write(text)

    def record(self, value: Mapping[str, Any]) -> None:
        """Write the result of a command as one line of JSON, if this is what was chosen; call it last."""
        if self._as_json:
            output = _QuietConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)
            # Without escapes and line breaks of the console's own.
            output.out(redact(json.dumps(value)), highlight=False)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a result in columns; the last one is never filled up, so that it may be long."""
        lines = [tuple(shown(" ".join(cell.split())) for cell in row) for row in (header, *rows)]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)][:-1]

        def filled(line: Sequence[str]) -> str:
            # A Chinese character is two columns wide.
            cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=False)]
            return "  ".join((*cells, line[-1])).rstrip()

        self.result("\n".join(map(filled, lines)))

    def _write(self, text: str) -> None:
        self._console.print(Text(shown(text, keep="\n")), soft_wrap=True)

    def masked(self, pieces: Sequence[tuple[str, bool]]) -> None:
        """Write a text in pieces, each with True if it is trained on.

        In colour trained text is bold and green, the rest dim. Without colours each line has a mark: "+" where it is trained; ">"
        instead of "|" where it continues the line above.
        """
        if self._console.color_system is not None:
            text = Text()
            for piece, trained in pieces:
                text.append(shown(piece, keep="\n"), "bold green" if trained else "dim")
            self._console.print(text, soft_wrap=True)
            return
        begins = True
        for piece, trained in pieces:
            for line in shown(piece, keep="\n").splitlines(keepends=True):
                mark = f"{'+' if trained else ' '}{'|' if begins else '>'}"
                self._console.print(Text(f"{mark} {line.removesuffix(chr(10))}"), soft_wrap=True)
                begins = line.endswith("\n")

    @contextmanager
    def plan(self, shares: Mapping[str, float]) -> Iterator[None]:
        """Announce the phases of the block, by their names, with the shares of its time that they are expected to take."""
        self._plan = _Plan(shares, self._clock())
        whole = sum(shares.values())
        parts = ", ".join(f"{name} {share / whole:.0%}" for name, share in shares.items())
        self.note(f"{len(shares)} phases, with about these shares of the time: {parts}")
        try:
            yield
        finally:
            self._plan = None

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[Phase]:
        """Show the progress of a phase while the block runs; one phase at a time. `done` steps precede it."""
        show = self._lines
        if self._quiet:
            show = self._silent
        elif self._notebook is not None:
            show = self._notebook_bar
        elif self._live:
            show = self._bar
        with show(name, total, done) as phase:
            yield phase

    @contextmanager
    def _bar(self, name: str, total: int, done: int) -> Iterator[Phase]:
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=14),
            MofNCompleteColumn(),
            _TimeColumn(lambda: self._times(phase)),
            # The one column that gives way on a narrow terminal.
            TextColumn("{task.fields[status]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            console=self._console,
            expand=True,
        )

        def draw(phase: Phase) -> None:
            progress.update(task, completed=phase.done, status=shown(phase.status))

        phase = Phase(name, total, draw, self._clock, done)
        title = f"{self._plan.ordinal(name) if self._plan else ''} {name}".strip()
        task: TaskID = progress.add_task(shown(title), total=total, completed=done, status="")
        with progress:
            yield phase
            phase.advance(0, waiting="")

    @contextmanager
    def _silent(self, name: str, total: int, done: int) -> Iterator[Phase]:
        yield Phase(name, total, lambda _: None, self._clock, done)

    @contextmanager
    def _notebook_bar(self, name: str, total: int, done: int) -> Iterator[Phase]:
        handle: Any = None

        def draw(phase: Phase, *, now: bool = False) -> None:
            if now or self._clock() - self._last_line >= NOTEBOOK_INTERVAL_SECONDS:
                self._last_line = self._clock()
                handle.update(self._in_notebook(phase), raw=True)

        phase = Phase(name, total, draw, self._clock, done)
        assert self._notebook is not None
        handle = self._notebook(self._in_notebook(phase), raw=True, display_id=True)
        try:
            yield phase
            phase.waiting = ""
        finally:
            draw(phase, now=True)

    def _in_notebook(self, phase: Phase) -> dict[str, str]:
        """Return the state of a phase as a bar, and as text for viewers without HTML."""
        facts = (f"{phase.name} {phase.done}/{phase.total}", self._times(phase), phase.status)
        text = shown("  ".join(fact for fact in facts if fact))
        bar = f'<progress value="{phase.done}" max="{max(phase.total, 1)}"></progress> {html.escape(text)}'
        return {"text/plain": text, "text/html": bar}

    @contextmanager
    def _lines(self, name: str, total: int, done: int) -> Iterator[Phase]:
        def draw(phase: Phase) -> None:
            if self._clock() - self._last_line >= LOG_INTERVAL_SECONDS:
                self._line(phase, self._times(phase))

        phase = Phase(name, total, draw, self._clock, done)
        ordinal = self._plan.ordinal(name) if self._plan else ""
        self._line(phase, f"begins, phase {ordinal}" if ordinal else "begins")
        end = "stopped"
        try:
            yield phase
            end, phase.waiting = "done", ""
        finally:
            self._line(phase, f"{end} after {duration(phase.seconds)}")

    def _line(self, phase: Phase, what: str) -> None:
        self._last_line = self._clock()
        facts = (f"{phase.name} {phase.done}/{phase.total}", what, phase.status)
        self.note("  ".join(fact for fact in facts if fact))

    def _times(self, phase: Phase) -> str:
        """Return the time that a phase has taken, and the time left for it and for the whole plan."""
        left = phase.seconds_left
        if left is None or phase.done >= phase.total:
            return duration(phase.seconds)
        times = f"{duration(phase.seconds)}, {duration(left)} left"
        in_all = self._plan.seconds_left(phase.name, left, self._clock()) if self._plan else None
        return times if in_all is None else f"{times} (all phases: {duration(in_all)})"


class _TimeColumn(ProgressColumn):
    """Text that is computed whenever the bar is drawn, so that its times advance between two steps."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__(Column(no_wrap=True))
        self._text = text

    def render(self, task: Task) -> Text:
        """Return the current text."""
        del task
        return Text(self._text())


def _notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display").display  # type: ignore[no-any-return]
