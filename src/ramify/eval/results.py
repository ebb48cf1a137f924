"""The folder of an evaluation, and those of its files that grow: JSON lines keyed by (problem, attempt).

RUN/recipe.toml  manifest.json  results.jsonl  times.jsonl  trees.jsonl; at the end times.json  results.csv  report.html  summary.json
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ramify.core.errors import ConfigError, DataError
from ramify.core.json_types import FieldError, Reader, each, number, part, text
from ramify.eval.attempts import AttemptRecord, read_attempt
from ramify.files.durable import RECIPE
from ramify.runs.claims import RunKind
from ramify.runs.keyed_lines import KeyedLines, key_of
from ramify.runs.manifest import MANIFEST

T = TypeVar("T")

_OURS = frozenset(
    {
        MANIFEST,
        RECIPE,
        "results.jsonl",
        "times.jsonl",
        "trees.jsonl",
        "summary.json",
        "times.json",
        "results.csv",
        "report.html",
    }
)


def _has_begun(path: Path) -> bool:
    """Return True if a folder holds the first line of an attempt, or a summary."""
    results = path / "results.jsonl"
    return (results.is_file() and results.stat().st_size > 0) or (path / "summary.json").exists()


EVALUATION = RunKind("evaluation", "an evaluation", _has_begun)


def results_lines(folder: Path) -> KeyedLines:
    """`results.jsonl` of an evaluation."""
    return KeyedLines(folder / "results.jsonl", lambda record: key_of(record["problem"], record["attempt"]))


def times_lines(folder: Path) -> KeyedLines:
    """`times.jsonl`: measured times, which differ from run to run."""
    return KeyedLines(folder / "times.jsonl", lambda record: key_of(record["problem"], record["attempt"]))


def tree_lines(folder: Path) -> KeyedLines:
    """`trees.jsonl`: the trace of every attempt, as `obs.trace` reads it."""
    return KeyedLines(
        folder / "trees.jsonl", lambda record: key_of(record["problem"]["id"], record["key"]["step"])
    )


def read_records(folder: Path) -> tuple[AttemptRecord, ...]:
    """All finished attempts of an evaluation, in the order of the file.

    Raises:
        DataError: A line cannot be read, or two lines have the same key; names file and row.
    """
    return _read_lines(results_lines(folder), read_attempt, "an attempt")


def _read_lines(lines: KeyedLines, read: Reader[T], kind: str) -> tuple[T, ...]:
    records = []
    for row, line in enumerate(lines.read().values(), start=1):
        try:
            records.append(read(line))
        except FieldError as error:
            raise DataError(f"{lines.path} row {row}: not {kind}: {error}") from None
    return tuple(records)


@dataclass(frozen=True, slots=True)
class TimedCall:
    """Seconds that a call took in its tool, and seconds that it waited in queues."""

    tool: str
    seconds: float
    queued_seconds: float


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Seconds of an attempt and of its calls: a line of times.jsonl."""

    seconds: float
    calls: tuple[TimedCall, ...]


def read_times(folder: Path) -> tuple[AttemptTimes, ...]:
    """The times of all finished attempts, in the order of the file; raises as `read_records`."""
    return _read_lines(times_lines(folder), _read_attempt_times, "the times of an attempt")


def _read_attempt_times(line: Any) -> AttemptTimes:  # noqa: ANN401 - any JSON value
    times = _READ_TIMES(line)
    return AttemptTimes(times["seconds"], tuple(call for call in times["events"] if call is not None))


def _read_event(value: Any) -> TimedCall | None:  # noqa: ANN401 - any JSON value
    event = _READ_EVENT(value)
    if not event["kind"].startswith("tool/"):
        return None
    queued = part(fields=part(queued_seconds=number))(event)["fields"]["queued_seconds"]
    return TimedCall(event["kind"].removeprefix("tool/"), event["seconds"], queued)


_READ_EVENT = part(kind=text, seconds=number)
_READ_TIMES = part(seconds=number, events=each(_read_event))


def check_eval_folder(path: Path, resume: bool) -> None:
    """Check that an evaluation may use the folder, without writing anything.

    Raises:
        ConfigError: It holds other files or links, or it holds attempts and `resume` is false.
    """
    EVALUATION.check(path, resume)
    for name in sorted(_OURS):
        if (path / name).is_dir():
            raise ConfigError(f"run.dir: {path / name} is a folder, expected a file; move it away")
