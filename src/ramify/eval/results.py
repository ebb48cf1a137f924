"""The folder of an evaluation, and those of its files that grow: JSON lines keyed by (problem, attempt).

RUN/recipe.toml  manifest.json  results.jsonl  times.jsonl  trees.jsonl; at the end times.json  results.csv  report.html  summary.json
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import ConfigError, DataError
from ramify.eval.attempts import AttemptRecord, require_types
from ramify.obs.files import (
    RECIPE,
    append_line,
    dump_line,
    entries,
    parse_line,
    replace_pieces,
    require_plain_files,
)
from ramify.obs.manifest import MANIFEST

Key: TypeAlias = tuple[str, int]
"""Id of a problem, number of the attempt."""
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

_BEFORE_ATTEMPTS = frozenset({MANIFEST, RECIPE})
"""Files from before the first attempt. A folder with only these holds nothing to resume, and may be used again."""


@dataclass(frozen=True, slots=True)
class _Line:
    row: int
    start: int
    size: int


class KeyedLines:
    """A file with one line for each attempt, written when the attempt ends.

    A killed process loses at most the line that it was writing; only a crash of the machine can lose more. The file may
    be larger than memory: all methods except `read` process it line by line.
    """

    def __init__(self, path: Path, key_of: Callable[[Mapping[str, Any]], Key]) -> None:
        """`key_of` returns the key of a line; it raises KeyError or TypeError if there is none."""
        self.path, self._key_of = path, key_of

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line.

        Raises:
            ValueError: A number is not finite.
        """
        append_line(self.path, record, synced=False)

    def read(self) -> dict[Key, dict[str, Any]]:
        """All complete lines by key; a last line that was cut off is ignored.

        Raises:
            DataError: A line cannot be read, or two lines have the same key; names file and row.
        """
        return {key: record for key, _, record in self._lines()}

    def keys(self) -> frozenset[Key]:
        """The keys of all complete lines; raises as `read`."""
        return frozenset(key for key, _, _ in self._lines())

    def keep(self, keys: Set[Key]) -> None:
        """Drop all lines with other keys, and a last line that was cut off; raises as `read`."""
        self._rewrite([(line, None) for key, line, _ in self._lines() if key in keys])

    def sort(self, keys: Sequence[Key]) -> None:
        """Put the lines into this order, and drop those with other keys; raises as `read`."""
        found = {key: line for key, line, _ in self._lines()}
        self._rewrite([(found[key], None) for key in keys if key in found])

    def update(self, records: Mapping[Key, Mapping[str, Any]]) -> None:
        """Replace the lines with these keys; raises as `read`."""
        self._rewrite([(line, records.get(key)) for key, line, _ in self._lines()])

    def texts(self, keys: Set[Key]) -> dict[Key, tuple[int, str]]:
        """Row (from 1) and text of the lines with these keys; raises as `read`."""
        return {key: (line.row, dump_line(record)) for key, line, record in self._lines() if key in keys}

    def _lines(self) -> Iterator[tuple[Key, _Line, dict[str, Any]]]:
        if not self.path.exists():
            return
        if not self.path.is_file():
            raise DataError(f"{self.path} is a folder, expected a file of JSON lines")
        rows: dict[Key, int] = {}
        start = 0
        with self.path.open("rb") as file:
            for row, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    return
                try:
                    record = parse_line(self.path, row, raw.decode())
                    key = self._key_of(record)
                except UnicodeDecodeError:
                    raise DataError(f"{self.path} row {row}: the line is not UTF-8 text") from None
                except (KeyError, TypeError):
                    raise DataError(f"{self.path} row {row}: expected a line of an attempt") from None
                if key in rows:
                    raise DataError(
                        f"{self.path} row {row}: attempt {key[1]} at problem {key[0]!r} is in row {rows[key]} already; "
                        "delete one of the two lines"
                    )
                rows[key] = row
                yield key, _Line(row, start, len(raw)), record
                start += len(raw)

    def _rewrite(self, lines: Sequence[tuple[_Line, Mapping[str, Any] | None]]) -> None:
        """Rewrite the file with these lines or their replacements; a kill leaves either the old file or the new one."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:

            def pieces() -> Iterator[bytes]:
                for line, record in lines:
                    if record is not None:
                        yield f"{dump_line(record)}\n".encode()
                        continue
                    file.seek(line.start)
                    yield file.read(line.size)

            replace_pieces(self.path, pieces())


def results_lines(folder: Path) -> KeyedLines:
    """`results.jsonl` of an evaluation."""
    return KeyedLines(folder / "results.jsonl", lambda record: _key(record["problem"], record["attempt"]))


def times_lines(folder: Path) -> KeyedLines:
    """`times.jsonl`: measured times, which differ from run to run."""
    return KeyedLines(folder / "times.jsonl", lambda record: _key(record["problem"], record["attempt"]))


def tree_lines(folder: Path) -> KeyedLines:
    """`trees.jsonl`: the trace of every attempt, as `obs.trace` reads it."""
    return KeyedLines(
        folder / "trees.jsonl", lambda record: _key(record["problem"]["id"], record["key"]["step"])
    )


def read_records(folder: Path) -> tuple[AttemptRecord, ...]:
    """All finished attempts of an evaluation, in the order of the file.

    Raises:
        DataError: A line cannot be read, or two lines have the same key; names file and row.
    """
    lines = results_lines(folder)
    records = []
    for row, record in enumerate(lines.read().values(), start=1):
        try:
            records.append(AttemptRecord.from_json(record))
        # Foreign files: a field may hold anything.
        except Exception as error:  # noqa: BLE001
            raise DataError(f"{lines.path} row {row}: not an attempt: {error!r:.200}") from None
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
    lines = times_lines(folder)
    times = []
    for row, record in enumerate(lines.read().values(), start=1):
        try:
            times.append(_times(record))
        # Foreign files: a field may hold anything.
        except Exception as error:  # noqa: BLE001
            raise DataError(f"{lines.path} row {row}: not the times of an attempt: {error!r:.200}") from None
    return tuple(times)


def _times(record: Mapping[str, Any]) -> AttemptTimes:
    require_types(record, seconds=float, events=list)
    calls = []
    for event in record["events"]:
        require_types(event, kind=str, seconds=float)
        if event["kind"].startswith("tool/"):
            require_types(event["fields"], queued_seconds=float)
            tool = event["kind"].removeprefix("tool/")
            calls.append(TimedCall(tool, event["seconds"], event["fields"]["queued_seconds"]))
    return AttemptTimes(record["seconds"], tuple(calls))


def _key(problem: object, attempt: object) -> Key:
    if not isinstance(problem, str) or not isinstance(attempt, int):
        raise TypeError("a key is a text and a number")
    return problem, attempt


def check_eval_folder(path: Path, resume: bool) -> None:
    """Check that an evaluation may use the folder, without writing anything.

    Raises:
        ConfigError: It holds other files or links, or it holds attempts and `resume` is false.
    """
    if not path.exists():
        return
    names = entries(path) if path.is_dir() else frozenset({""})
    if not names <= _OURS:
        raise ConfigError(f"run.dir: {path} exists and is not empty; expected a new or empty folder")
    if names - _BEFORE_ATTEMPTS and not resume:
        raise ConfigError(f"run.dir: {path} holds an evaluation; go on with --resume or name a new folder")
    require_plain_files("run.dir", path)
    for name in sorted(names):
        if (path / name).is_dir():
            raise ConfigError(f"run.dir: {path / name} is a folder, expected a file; move it away")
