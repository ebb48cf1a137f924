"""The folder of an evaluation, and those of its files that grow: JSON lines keyed by (problem, attempt).

RUN/recipe.toml  manifest.json  results.jsonl  times.jsonl  trees.jsonl; at the end times.json  results.csv  report.html  summary.json
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, Reader, count, each, number, optional, part, text, whole
from ramify.eval.attempts import AttemptRecord, read_attempt
from ramify.runs import manifest
from ramify.runs.keyed_lines import KeyedLines, key_of

T = TypeVar("T")


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


def attempt_lines(folder: Path) -> tuple[KeyedLines, KeyedLines, KeyedLines]:
    """The three files in the order in which an attempt is written: it is done once its line is in the last."""
    return tree_lines(folder), times_lines(folder), results_lines(folder)


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


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an evaluation: all that its scores depend on, written before the first attempt.

    Raises:
        DataError: It is missing, cannot be read, or is of another schema.
    """
    return manifest.read_manifest(folder, scores=_READ_SCORES, notes=each(text))


_READ_SCORES = part(
    problems=part(count=count, sha256=text),
    sampling=part(attempts=count, right_by=text),
    engine=part(name=text),
    model=part(path=text),
    reward=part(judge=optional(part())),
    seed=whole,
)


def answered_by(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return what answered the problems. With a service or a script, `model.path` is only the folder of the tokenizer."""
    engine, path = scores["engine"], str(scores["model"]["path"])
    match engine["name"]:
        case "openai":
            served = {name: engine.get(name) for name in ("url", "api")}
            return {"name": engine["model"], **served, "tokenizer": path, "exact_ids": False}
        case "vllm" if not engine["launch"]:
            return {
                "name": engine.get("model") or "the model",
                "url": ", ".join(engine["urls"]),
                "tokenizer": path,
            }
        case "scripted":
            return {"name": f"the script {engine['script']}", "tokenizer": path}
        case _:
            return {"name": path}
