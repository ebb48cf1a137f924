"""The record of an attempt, and the folder of an evaluation: its files that grow are JSON lines keyed by (problem, attempt).

A record is taken from the attempt's tree of one trajectory, and never from counting tags in the text.

RUN/recipe.toml  manifest.json  results.jsonl  times.jsonl  trees.jsonl; at the end times.json  report.html  summary.json
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from ramify.core.errors import DataError
from ramify.core.json_types import (
    FieldError,
    Reader,
    count,
    each,
    mapping,
    member,
    number,
    one_of,
    optional,
    part,
    record,
    text,
    truth,
    whole,
)
from ramify.core.messages import Problem, ToolCall, ToolStatus
from ramify.core.records import Reward
from ramify.core.tree import StopReason, Trajectory, Tree
from ramify.obs.token_counts import TokenCounts, count_tokens
from ramify.rewards.extract import answer_of, last_turn
from ramify.rollout.repair import repairs_of
from ramify.runs import manifest
from ramify.runs.keyed_lines import KeyedLines, key_of

T = TypeVar("T")

GROUPS = ("benchmark", "kind", "level", "category", "language", "data_source")
"""Columns of a problem by which results are grouped, if the problem has them."""

Outcome: TypeAlias = Literal["executed", "failed", "refused"]
_OUTCOMES: Mapping[str, Outcome] = MappingProxyType(
    {
        ToolStatus.OK: "executed",
        ToolStatus.EMPTY: "executed",
        ToolStatus.ERROR: "failed",
        ToolStatus.TIMEOUT: "failed",
        ToolStatus.MALFORMED: "refused",
        ToolStatus.UNKNOWN_TOOL: "refused",
        ToolStatus.OVER_LIMIT: "refused",
    }
)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One tool call: the status of its result, which is "over_limit" too for the call that ended the attempt.

    `repeated`: the attempt had already made the same call with the same arguments.
    """

    tool: str
    status: str
    repeated: bool

    @property
    def outcome(self) -> Outcome:
        """Return how the call ended: the tool ran and returned a result, ran and failed, or did not run."""
        return _OUTCOMES[self.status]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt: a line of results.jsonl, keyed by (problem, attempt).

    Attributes:
        problem: Id of the problem.
        attempt: Number of the attempt, from 0.
        groups: The problem's columns among `GROUPS`, as text.
        answer: The extracted answer; "" if there is none.
        correct: Whether the part of the reward that decides is at least 1; partial credit does not count.
        reward: Value of the reward.
        parts: All parts of the reward, and the scores of `retrieval_scores`.
        stop: Why the attempt ended.
        calls: Its tool calls, in order.
        tokens: Its token counts.
        repairs: How often each rewriter had it go on from elsewhere, by name, and each outcome of the debugger.
    """

    problem: str
    attempt: int
    groups: Mapping[str, str]
    answer: str
    correct: bool
    reward: float
    parts: Mapping[str, float]
    stop: StopReason
    calls: tuple[CallRecord, ...]
    tokens: TokenCounts
    repairs: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object, for `read_attempt`."""
        return asdict(self)


def record_attempt(tree: Tree, reward: Reward, decides: str = "correct") -> AttemptRecord:
    """Return the record of an attempt; `TreeKey.step` of the tree's key is the number of the attempt.

    Args:
        tree: A tree of one trajectory.
        reward: Its reward.
        decides: The part of the reward that decides whether the attempt is correct; without this part it is not.

    Raises:
        ValueError: The tree has more than one leaf; leaves of one tree are not independent attempts.
    """
    (trajectory,) = tree.trajectories
    return AttemptRecord(
        tree.problem.id,
        tree.key.step,
        _groups(tree.problem),
        answer_of(trajectory),
        reward.parts.get(decides, 0.0) >= 1.0,
        reward.value,
        {**reward.parts, **retrieval_scores(trajectory)},
        trajectory.stop,
        _calls(trajectory),
        count_tokens(trajectory),
        repairs_of(trajectory),
    )


def _groups(problem: Problem) -> dict[str, str]:
    named = {name: problem.info.get(name) for name in GROUPS}
    return {name: str(value) for name, value in named.items() if value is not None and str(value)}


def _calls(trajectory: Trajectory) -> tuple[CallRecord, ...]:
    calls: list[tuple[ToolCall, str]] = [(call, result.status) for call, result in trajectory.exchanges]
    if trajectory.stop is StopReason.CALLS:
        calls.extend((call, ToolStatus.OVER_LIMIT) for call in trajectory.leaf.calls)
    earlier: list[tuple[str, Mapping[str, Any]]] = []
    records = []
    for call, status in calls:
        signature = (call.name, call.arguments)
        records.append(CallRecord(call.name, status, call.malformed is None and signature in earlier))
        earlier.append(signature)
    return tuple(records)


def _read_float(value: Any) -> float:  # noqa: ANN401 - any JSON value
    return float(number(value))


read_attempt: Reader[AttemptRecord] = record(
    AttemptRecord,
    problem=text,
    attempt=count,
    groups=mapping(text),
    answer=text,
    correct=truth,
    reward=_read_float,
    parts=mapping(_read_float),
    stop=member(StopReason),
    calls=each(record(CallRecord, tool=text, status=one_of(_OUTCOMES), repeated=truth)),
    tokens=record(TokenCounts, prompt=count, written=count, results=count, sent=count),
    repairs=mapping(count),
)
"""Reads the JSON object of a line."""


def results_lines(folder: Path) -> KeyedLines:
    """Return `results.jsonl` of an evaluation."""
    return KeyedLines(folder / "results.jsonl", lambda record: key_of(record["problem"], record["attempt"]))


def times_lines(folder: Path) -> KeyedLines:
    """Return `times.jsonl`: measured times, which differ from run to run."""
    return KeyedLines(folder / "times.jsonl", lambda record: key_of(record["problem"], record["attempt"]))


def tree_lines(folder: Path) -> KeyedLines:
    """Return `trees.jsonl`: the trace of every attempt, as `obs.trace` reads it."""
    return KeyedLines(
        folder / "trees.jsonl", lambda record: key_of(record["problem"]["id"], record["key"]["step"])
    )


def attempt_lines(folder: Path) -> tuple[KeyedLines, KeyedLines, KeyedLines]:
    """Return the three files in the order in which an attempt is written: it is done once its line is in the last."""
    return tree_lines(folder), times_lines(folder), results_lines(folder)


def read_records(folder: Path) -> tuple[AttemptRecord, ...]:
    """Return all finished attempts of an evaluation, in the order of the file.

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
    """Seconds that a call took in its tool, seconds that it waited in queues, and the outcomes of the services behind it."""

    tool: str
    seconds: float
    queued_seconds: float
    services: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Seconds of an attempt and of its calls: a line of times.jsonl."""

    seconds: float
    calls: tuple[TimedCall, ...]


def read_times(folder: Path) -> tuple[AttemptTimes, ...]:
    """Return the times of all finished attempts, in the order of the file; raises as `read_records`."""
    return _read_lines(times_lines(folder), _read_attempt_times, "the times of an attempt")


def _read_attempt_times(line: Any) -> AttemptTimes:  # noqa: ANN401 - any JSON value
    times = _READ_TIMES(line)
    return AttemptTimes(times["seconds"], tuple(call for call in times["events"] if call is not None))


def _read_event(value: Any) -> TimedCall | None:  # noqa: ANN401 - any JSON value
    event = _READ_EVENT(value)
    if not event["kind"].startswith("tool/"):
        return None
    fields = part(fields=part(queued_seconds=number))(event)["fields"]
    # Results of earlier versions have no services.
    services = mapping(count)(fields.get("services", {}))
    return TimedCall(
        event["kind"].removeprefix("tool/"), event["seconds"], fields["queued_seconds"], services
    )


_READ_EVENT = part(kind=text, seconds=number)
_READ_TIMES = part(seconds=number, events=each(_read_event))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of an evaluation: all that its scores depend on, written before the first attempt.

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
            url = engine["url"] if isinstance(engine["url"], str) else ", ".join(engine["url"])
            served = {"url": url, "api": engine.get("api")}
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


_CONFIDENCE = re.compile(r"confidence\W{1,12}(\d{1,3}(?:\.\d+)?)\s*\\?%", re.IGNORECASE)


def retrieval_scores(trajectory: Trajectory) -> Mapping[str, float]:
    """Return `evidence_recall` and `confidence`, in [0, 1], of a problem with `evidence_docs`; nothing for other problems.

    `evidence_recall` is the share of these documents that its searches showed. `confidence` is absent if its last turn states none.
    """
    evidence = trajectory.problem.info.get("evidence_docs")
    if not isinstance(evidence, list) or not evidence:
        return {}
    shown: set[str] = set()
    for _, result in trajectory.exchanges:
        passages = result.info.get("passages")
        shown.update(map(str, passages) if isinstance(passages, list) else ())
    wanted = set(map(str, evidence))
    scores = {"evidence_recall": len(wanted & shown) / len(wanted)}
    stated = _CONFIDENCE.findall(last_turn(trajectory))
    if stated and float(stated[-1]) <= 100:
        scores["confidence"] = float(stated[-1]) / 100
    return scores
