"""The reasons of a reward, in sentences: its rule, its parts, the answer and the golds, the end, and the judge's words."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, count, optional, part, text, truth
from ramify.core.messages import MalformedTurn
from ramify.core.records import Reward
from ramify.core.tree import StopReason, Trajectory
from ramify.eval.results import results_lines
from ramify.files.durable import dump_line, parse_line
from ramify.obs.trace import lines_of
from ramify.rewards.extract import has_closed_box
from ramify.view.folders import is_file

AttemptKey: TypeAlias = tuple[str, int]

_ENDS: Mapping[StopReason, str] = {
    StopReason.ANSWERED: "The policy ended it with an answer.",
    StopReason.MALFORMED: "The policy ended its turn with neither a call nor an answer that can be read.",
    StopReason.TOKENS: "It was cut: the token limit was reached.",
    StopReason.CALLS: "It was cut: the policy made a call more than the limit.",
    StopReason.DEADLINE: "It was cut: its time was used up.",
    StopReason.ENDED: "The environment ended it.",
    StopReason.FAILED: "It was cut: the environment failed.",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of an evaluation on an attempt beside its tree.

    Attributes:
        is_right: Whether the attempt counts as correct; None if there is no result of it.
        words: A sentence with the judge's verdict and words; "".
    """

    is_right: bool | None
    words: str


def verdict_of(folder: Path, key: AttemptKey) -> Verdict:
    """Return the verdict on an attempt from `results.jsonl` and, if it was judged later, `judge/verdicts.jsonl`."""
    is_right, words = None, ""
    with suppress(DataError, FieldError):
        for record in _records(results_lines(folder).path, key):
            is_right = _READ_RESULT(record)["correct"]
        for record in _records(folder / "judge" / "verdicts.jsonl", key):
            verdict = _READ_VERDICT(record)
            outcome = {True: "right", False: "wrong", None: "no verdict"}[verdict["correct"]]
            words = f"Judge: {outcome}. {verdict['reason'].strip()}".strip()
    return Verdict(is_right, words)


def right_attempts(folder: Path) -> dict[AttemptKey, bool]:
    """Return for each attempt with a result whether it is correct."""
    path = results_lines(folder).path
    right: dict[AttemptKey, bool] = {}
    with suppress(DataError, FieldError):
        for row, line in enumerate(_whole_lines(path), start=1):
            record = _READ_RESULT(parse_line(path, row, line.decode("utf-8", "replace")))
            right[record["problem"], record["attempt"]] = record["correct"]
    return right


def _records(path: Path, key: AttemptKey) -> Iterator[dict[str, Any]]:
    """Yield the lines of an attempt; the file is not read as a whole."""
    mark = dump_line({"problem": key[0], "attempt": key[1]})[:-1].encode() + b","
    for row, line in enumerate(_whole_lines(path), start=1):
        if line.startswith(mark):
            yield parse_line(path, row, line.decode("utf-8", "replace"))


def _whole_lines(path: Path) -> Iterator[bytes]:
    if is_file(path):
        yield from (line for line in lines_of(path) if line.endswith(b"\n"))


def reasons(trajectory: Trajectory, reward: Reward, answer: str, rule: str, verdict: Verdict) -> list[str]:
    """Return why a trajectory has its reward; `rule` names the reward of the recipe, "" if that is not known."""
    parts = ", ".join(f"{name} {value:g}" for name, value in reward.parts.items())
    lines = [
        f"Reward {reward.value:g}{f' by the rule {rule}' if rule else ''}{f': {parts}' if parts else ''}."
    ]
    if golds := trajectory.problem.answer:
        accepted = " or ".join(f"“{gold}”" for gold in golds[:5])
        more = f" or {len(golds) - 5} others" if len(golds) > 5 else ""
        lines.append(f"The answer read is {f'“{answer}”' if answer else 'none'}; accepted: {accepted}{more}.")
    if reward.parts.get("format") == 0.0:
        lines.extend(_faults(trajectory))
    lines.append(_ENDS[trajectory.stop])
    if not reward.counts:
        lines.append("It does not count: the outcome says nothing about the policy.")
    lines.extend(f"Node {node}: {value:+g} for its turn." for node, value in reward.events.items())
    if verdict.is_right is not None:
        lines.append(f"The evaluation counts it as {'right' if verdict.is_right else 'wrong'}.")
    if verdict.words:
        lines.append(verdict.words)
    elif "judge" in reward.parts:
        lines.append(
            f"Judge: {'right' if reward.parts['judge'] >= 1 else 'wrong'}; its words were not recorded."
        )
    return lines


def _faults(trajectory: Trajectory) -> Iterator[str]:
    """Yield what keeps a trajectory from being well formed."""
    for node in trajectory.nodes:
        if isinstance(node.turn, MalformedTurn):
            yield f"Not well formed: the turn of node {node.id} cannot be read ({node.turn.reason})."
        for call in node.calls:
            if call.malformed is not None:
                yield f"Not well formed: the call {call.name} of node {node.id} cannot be read ({call.malformed})."
    if trajectory.final_answer and not has_closed_box(trajectory.final_answer):
        yield "Not well formed: the answer has no closed \\boxed{...}."


_READ_VERDICT = part(correct=optional(truth), reason=text)
_READ_RESULT = part(problem=text, attempt=count, correct=truth)
