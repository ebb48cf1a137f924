"""The log of metrics, one JSON line for each step, appended and synced as the run goes; and the log of timings."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, optional
from ramify.core.json_types import number as finite_number
from ramify.core.protocols import Event
from ramify.files.durable import append_line, dump_line, parse_line, read_text, replace_lines
from ramify.files.untrusted import read_small_file

if TYPE_CHECKING:
    # Its module imports asyncio, which a dry run has no use for.
    from ramify.runtime.call_clock import EventLoopLag

MetricsRow: TypeAlias = Mapping[str, float | None]
Curve: TypeAlias = tuple[tuple[float, float], ...]

_KEYS = ("step", "time")
_SHOWN = 5
"""Most failed problems that a note lists."""


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, since a log line cannot hold these."""
    return value if math.isfinite(value) else None


class MetricsLog:
    """Appends to a JSONL file. Keys of a line: `step`, `time` (seconds since 1970) and the metrics' names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write one line.

        Raises:
            ValueError: A value that is neither None nor a finite number, or a metric called `step` or `time`.
        """
        for name, value in values.items():
            if name in _KEYS:
                raise ValueError(f"a metric cannot be called {name!r}")
            if value is not None and not math.isfinite(value):
                raise ValueError(f"step {step}: metric {name!r} is {value}; expected a finite number or None")
        append_line(self._path, {"step": step, "time": time.time(), **values}, synced=True)

    def last_step(self) -> int:
        """Return the highest step that has a line; 0 if there is none.

        Raises:
            DataError: A line in the file cannot be read.
        """
        rows = read_metrics(self._path) if self._path.exists() else ()
        return int(_number(rows[-1], "step")) if rows else 0

    def missing(self, step: int) -> tuple[int, ...]:
        """Return the steps from 1 to `step` that have no line.

        Raises:
            DataError: A line in the file cannot be read.
        """
        rows = read_metrics(self._path) if self._path.exists() else ()
        there = {_number(row, "step") for row in rows}
        return tuple(number for number in range(1, step + 1) if number not in there)

    def is_cut_off(self) -> bool:
        """Return True if the last line lacks its newline, as after a crash."""
        content = read_small_file(self._path) if self._path.is_file() else b""
        return bool(content) and not content.endswith(b"\n")

    def truncate_after(self, step: int) -> None:
        """Drop the lines of later steps, and a line cut off by a kill: those steps are repeated.

        Call it at every resume, before the first `append`. The lines that stay are not changed.

        Raises:
            DataError: A line in the file cannot be read.
        """
        if self._path.exists():
            num_lines = sum(_number(row, "step") <= step for row in read_metrics(self._path))
            replace_lines(self._path, read_text(self._path).split("\n")[:num_lines])


def read_metrics(path: Path) -> tuple[MetricsRow, ...]:
    """Read all finished lines, in order; a last line without its newline is still being written, and skipped.

    Raises:
        DataError: The file is missing, or a line is not an object of finite numbers with a higher step than the line
            before; names file and row, and says what to do.
    """
    rows: list[MetricsRow] = []
    for number, line in enumerate(read_text(path).split("\n")[:-1], start=1):
        rows.append(_parse(path, number, line, after=_number(rows[-1], "step") if rows else -math.inf))
    return tuple(rows)


def curve(rows: Sequence[MetricsRow], name: str) -> Curve:
    """Return the (step, value) pairs of one metric, for the steps at which it has a value."""
    return tuple((_number(row, "step"), value) for row in rows if (value := row.get(name)) is not None)


def _parse(path: Path, number: int, line: str, after: float) -> MetricsRow:
    try:
        record = parse_line(path, number, line)
        step = record.get("step")
        if type(step) is not int or not after < step < 1 << 53:
            raise DataError(f"{path} row {number}: expected a whole number 'step' above {max(after, 0):.0f}")
        for name, value in record.items():
            try:
                optional(finite_number)(value)
            except FieldError as error:
                raise DataError(f"{path} row {number}: {error.at(name)}") from None
    except DataError as error:
        raise DataError(
            f"{error}. Restore the file from a copy, or delete this line: training does not use it"
        ) from None
    return record


def _number(row: MetricsRow, name: str) -> float:
    value = row[name]
    if value is None:
        raise ValueError(f"{name!r} has no value")
    return value


class TimingLog:
    """Collects events (an `EventSink`) until they are written; `start` is to be called before the first one of a step.

    Attributes:
        failed_problems: The problems that failed as a whole, each with its reason.
    """

    def __init__(self) -> None:
        self.failed_problems: list[str] = []
        self._services: Counter[str] = Counter()
        self._events: list[Event] = []
        self._start: float | None = None
        self._rewritten: Counter[str] = Counter()
        self._failures: dict[str, list[str]] = {}

    def start(self, now: float) -> None:
        """Count `begin` of events from `now` on, unless the step has begun already."""
        if self._start is None:
            self._start = now

    def emit(self, event: Event) -> None:
        """Keep one event in memory."""
        self._events.append(event)
        self._services.update(event.fields.get("services", {}))
        # A foreign message may have line breaks; a note is one line.
        reason = " ".join(str(event.fields.get("reason", "")).split())
        if event.kind == "problem/failed":
            problem = f"problem {event.fields['problem']!r}"
            self.failed_problems.append(reason if reason.startswith(problem) else f"{problem}: {reason}")
        elif "reason" in event.fields:
            self._failures.setdefault(event.kind, []).append(reason)
        elif event.kind.startswith("rewriter/"):
            self._rewritten[event.kind] += 1

    def failure_notes(self) -> tuple[str, ...]:
        """Return a line for the failed problems, one for each rewriter and environment method with failures, and one for pages and
        for summaries of which more than a tenth failed."""
        notes = []
        if failed := self.failed_problems:
            left_out = len(failed) - _SHOWN
            more = f"; and {left_out} more" if left_out > 0 else ""
            notes.append(f"failed and skipped: {'; '.join(failed[:_SHOWN])}{more}")
        for kind, reasons in self._failures.items():
            what, _, name = kind.partition("/")
            line = f"failed {len(reasons)} times, first with: {reasons[0]}"
            if what == "rewriter":
                line = (
                    f"{len(reasons)} of {len(reasons) + self._rewritten[kind]} answers could not be used, "
                    f"first: {reasons[0]}"
                )
            notes.append(f"{what} {name}: {line}")
        return (*notes, *service_notes(self._services))

    def service_metrics(self) -> dict[str, float]:
        """Return the metrics of pages, summaries and the cache over the events since the last flush."""
        counts: Counter[str] = Counter()
        for event in self._events:
            counts.update(event.fields.get("services", {}))
        return service_metrics(counts)

    def take(self, tree: tuple[int, int]) -> tuple[dict[str, Any], ...]:
        """Remove and return the events of one tree (its step and slot) as JSON objects, in the order in which they came."""
        taken = tuple(self._record(event) for event in self._events if event.tree == tree)
        self._events = [event for event in self._events if event.tree != tree]
        return taken

    def flush(self, path: Path, held_up: "EventLoopLag") -> None:
        """Write the events since the last flush as JSON lines (`timing/STEP.jsonl`) and drop them from memory.

        The first line says how long the agent's event loop was blocked in that time.
        """
        events = ({"kind": event.kind, "tree": event.tree, **self._record(event)} for event in self._events)
        replace_lines(path, map(dump_line, [{"kind": "event_loop", **asdict(held_up)}, *events]))
        self.clear()

    def clear(self) -> None:
        """Drop the events since the last flush, where they are not recorded."""
        self._events.clear()
        self._start = None

    def _record(self, event: Event) -> dict[str, Any]:
        return {
            "kind": event.kind,
            "node": event.node,
            "begin": event.begin - (self._start or 0.0),
            "seconds": event.seconds,
            "fields": dict(event.fields),
        }


_WARN_FROM = 0.1
_INSTEAD = {
    "pages": ("page reads", "the policy got snippets in their place"),
    "summaries": ("summaries", "the policy got the passages in their place"),
}


def service_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """Return the metrics of a step; a name is absent if there is nothing to count."""
    metrics: dict[str, float] = {}
    for kind in _INSTEAD:
        outcomes = _outcomes(counts, kind)
        if outcomes:
            metrics |= {
                f"{kind}/ok": float(outcomes["ok"]),
                f"{kind}/failed": float(outcomes.total() - outcomes["ok"]),
            }
    cached = _cached(counts)
    return metrics | {f"cache/{name}": float(count) for name, count in cached.items() if cached.total()}


def service_notes(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return a warning for each kind of which more than a tenth failed."""
    notes = []
    for kind, (name, instead) in _INSTEAD.items():
        outcomes = _outcomes(counts, kind)
        failed = outcomes.total() - outcomes["ok"]
        if failed > _WARN_FROM * outcomes.total():
            reasons = ", ".join(f"{outcome} {n}" for outcome, n in outcomes.most_common() if outcome != "ok")
            notes.append(
                f"warning: {failed} of {outcomes.total()} {name} failed ({reasons}); {instead}. Check tools.browser"
            )
    return tuple(notes)


def service_table(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the outcomes by kind, for a summary; kinds of which there are none are left out."""
    kinds = {kind: _outcomes(counts, kind) for kind in (*_INSTEAD, "cache")}
    return {kind: dict(sorted(outcomes.items())) for kind, outcomes in kinds.items() if outcomes}


def _outcomes(counts: Mapping[str, int], kind: str) -> Counter[str]:
    return Counter(
        {name.removeprefix(f"{kind}/"): n for name, n in counts.items() if name.startswith(f"{kind}/")}
    )


def _cached(counts: Mapping[str, int]) -> Counter[str]:
    cached = Counter({"hits": 0, "misses": 0})
    for name, count in _outcomes(counts, "cache").items():
        cached[name.rpartition("/")[2]] += count
    return cached
