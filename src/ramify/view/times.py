"""Wall-clock times of recorded trees: `timing/STEP.jsonl` of a training step, `times.jsonl` of an evaluation.

The files are read line by line, and never as a whole: that of a step at each request, that of an evaluation once for the places of its
lines.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.json_types import count, each, json_object, mapping, number, part, text
from ramify.core.messages import ToolStatus
from ramify.core.tree import Tree
from ramify.files.durable import dump_line, parse_line
from ramify.obs.trace import TracedTree, lines_of
from ramify.view.folders import TraceSource, is_file, lines_of_attempt

_NOT_RUN = (ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL)

TreeKey: TypeAlias = tuple[object, int]
"""Step and slot of a tree; of an evaluation problem and attempt."""


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An event of a tree; `begin` is None in records of versions that did not write it."""

    kind: str
    node: str
    begin: float | None
    seconds: float
    fields: Mapping[str, Any]

    @property
    def as_time(self) -> dict[str, Any]:
        """Return the times of a node or of a call, for the page."""
        services: Mapping[str, int] = self.fields.get("services", {})
        cache = {name.rpartition("/")[2] for name in services if name.startswith("cache/")}
        return {
            "begin": self.begin,
            "seconds": self.seconds,
            "queued": self.fields.get("queued_seconds", 0.0),
            "cached": "hits" in cache if cache else None,
            "issued": self.fields.get("issued"),
        }


@dataclass(frozen=True, slots=True)
class TreeTimes:
    """The events of a tree, and its seconds from first to last; None if nothing says them."""

    events: tuple[TimedEvent, ...]
    seconds: float | None

    def of_turn(self, node: str) -> dict[str, Any] | None:
        """Return the time of the model turn that begins with a node."""
        return next(
            (event.as_time for event in self.events if (event.kind, event.node) == ("turn", node)), None
        )

    def of_calls(self, tree: Tree) -> dict[str, list[dict[str, Any] | None]]:
        """Return the times of executed calls, one a result, by the node that has the results.

        An event names the turn and the tool; the calls of a turn ran in their order, except those that no tool took.
        """
        pending: dict[tuple[str, str], list[TimedEvent]] = {}
        for event in self.events:
            if event.kind.startswith("tool/"):
                pending.setdefault((event.node, event.kind.removeprefix("tool/")), []).append(event)
        times: dict[str, list[dict[str, Any] | None]] = {}
        for node in tree.nodes:
            if not node.results:
                continue
            turn = node if node.stop is not None and node.calls else tree.by_id[node.parent or ""]
            times[node.id] = [
                None
                if result.status in _NOT_RUN or not (events := pending.get((turn.id, call.name)))
                else events.pop(0).as_time
                for call, result in zip(turn.calls, node.results, strict=False)
            ]
        return times


NO_TIMES = TreeTimes((), None)


def times_of(source: TraceSource, traced: TracedTree) -> TreeTimes:
    """Return the times of a tree; none if its file is missing or damaged."""
    key = traced.tree.key
    wanted: TreeKey = (traced.tree.problem.id, key.step) if source.by_attempt else (key.step, key.slot)
    mark = dump_line(wanted).encode()
    try:
        lines = (
            lines_of_attempt(source.times, traced.tree.problem.id, key.step)
            if source.by_attempt
            else (line for line in _lines(source.times) if mark in line)
        )
        events: list[TimedEvent] = []
        seconds = None
        for tree, timed, total in _read(source, lines):
            if tree == wanted:
                events.extend(timed)
                seconds = total if total is not None else seconds
        return TreeTimes(tuple(events), seconds if seconds is not None else span(events))
    except DataError:
        return NO_TIMES


def seconds_by_tree(source: TraceSource) -> dict[TreeKey, float]:
    """Return the seconds of all trees of a trace, as far as its times say them.

    A list of ten thousand trees needs them, so lines are not parsed as JSON: a line that is not as we write it is passed over.
    """
    if not is_file(source.times):
        return {}
    spans: dict[TreeKey, tuple[float, float]] = {}
    with suppress(OSError, ValueError), source.times.open("rb") as file:
        while lines := b"".join(file.readlines(_CHUNK)):
            if source.by_attempt:
                for problem, attempt, seconds in _ATTEMPT.findall(lines):
                    spans[json.loads(problem), int(attempt)] = (0.0, float(seconds))
                continue
            for step, slot, begin, seconds in _EVENT.findall(lines):
                tree, start = (int(step), int(slot)), float(begin)
                low, high = spans.get(tree, (start, start))
                spans[tree] = (min(low, start), max(high, start + float(seconds)))
    return {tree: high - low for tree, (low, high) in spans.items() if math.isfinite(high - low)}


def span(events: Iterable[TimedEvent]) -> float | None:
    """Return the seconds from the first beginning to the last end; None if no event has a beginning."""
    known = [(event.begin, event.begin + event.seconds) for event in events if event.begin is not None]
    return max(end for _, end in known) - min(begin for begin, _ in known) if known else None


def _lines(path: Path) -> Iterator[bytes]:
    if is_file(path):
        yield from (line for line in lines_of(path) if line.endswith(b"\n"))


def _read(
    source: TraceSource, lines: Iterable[bytes]
) -> Iterator[tuple[TreeKey, Sequence[TimedEvent], float | None]]:
    for row, line in enumerate(lines, start=1):
        record = parse_line(source.times, row, line.decode("utf-8", "replace"))
        try:
            if source.by_attempt:
                attempt = _READ_ATTEMPT(record)
                yield (attempt["problem"], attempt["attempt"]), attempt["events"], attempt["seconds"]
            elif "tree" in record:
                step, slot = each(count)(record["tree"])
                yield (step, slot), (_read_event(record),), None
        except ValueError as error:
            raise DataError(f"{source.times} row {row}: not the times of a tree: {error}") from None


def _read_event(value: Any) -> TimedEvent:  # noqa: ANN401 - any JSON value
    event = _READ_EVENT(value)
    fields = json_object(value.get("fields", {}))
    begin = value.get("begin")
    _READ_FIELDS({"queued_seconds": 0.0, "services": {}} | fields)
    return TimedEvent(
        event["kind"], event["node"], None if begin is None else number(begin), event["seconds"], fields
    )


_CHUNK = 1 << 20
_NUMBER = rb"(-?[0-9][0-9.e+-]{0,30})"
_ATTEMPT = re.compile(
    rb'^\{"problem":("(?:[^"\\]|\\.)*"),"attempt":([0-9]{1,15}),"seconds":' + _NUMBER + rb",", re.MULTILINE
)
_EVENT = re.compile(
    rb'"tree":\[([0-9]{1,15}),([0-9]{1,15})\],"node":"[0-9.]*","begin":'
    + _NUMBER
    + rb',"seconds":'
    + _NUMBER
    + rb"[,}]"
)
_READ_EVENT = part(kind=text, node=text, seconds=number)
_READ_FIELDS = part(queued_seconds=number, services=mapping(count))
_READ_ATTEMPT = part(problem=text, attempt=count, seconds=number, events=each(_read_event))
