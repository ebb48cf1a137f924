"""The attempts on the page of an evaluation: problems that it got wrong, or right in some attempts only, with their texts."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from markupsafe import Markup

from ramify.core.errors import DataError
from ramify.core.messages import MalformedTurn
from ramify.core.tree import StopReason
from ramify.eval.evaluation import Evaluation, ProblemResult
from ramify.eval.results import AttemptRecord, tree_lines
from ramify.obs.page import FoldedText, Section, Table, in_a_line
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import read_index, read_tree
from ramify.obs.tree_sections import conversation
from ramify.runs.keyed_lines import Key

_MOST_PROBLEMS = 15
"""Of each of the two tables."""
_MOST_TEXTS = 8
_MOST_ANSWERS = 4
_CHARS = 100
_LEAST_F1 = 0.01


def attempts_section(folder: Path, evaluation: Evaluation) -> Section:
    """Return the section; without the recorded trees it has answers only."""
    mixed = [result for result in evaluation.results if 0 < result.num_correct < len(result.attempts)]
    wrong = [result for result in evaluation.results if result.num_correct == 0]
    mixed.sort(key=lambda result: result.num_correct / len(result.attempts))
    shown = (*mixed[:_MOST_PROBLEMS], *wrong[:_MOST_PROBLEMS])
    trees, unread = _recorded(
        folder, frozenset((result.id, 0) for result in shown) | _keys_of_texts(mixed, wrong)
    )
    tables = (
        _table(f"Right in some attempts: {_count(mixed, evaluation)}", mixed, trees),
        _table(f"Wrong in every attempt: {_count(wrong, evaluation)}", wrong, trees),
    )
    return Section(
        "Problems",
        "Those with mixed and with wrong answers first." if shown else "Every attempt was right.",
        warnings=[unread] if unread and shown else [],
        tables=[table for table in tables if table.rows],
        texts=[text for result in (*mixed, *wrong) for text in _texts(result, trees)],
    )


def _count(results: Sequence[ProblemResult], evaluation: Evaluation) -> str:
    shown = f", the first {_MOST_PROBLEMS}" if len(results) > _MOST_PROBLEMS else ""
    return f"{len(results)} of {len(evaluation.results)} problems{shown}"


def _keys_of_texts(*ranked: Sequence[ProblemResult]) -> frozenset[Key]:
    """Return the attempts whose texts are shown: of each problem the first wrong one, and the first right one if there is one."""
    return frozenset(
        (result.id, attempt.attempt)
        for results in ranked
        for result in results[: _MOST_TEXTS // 2]
        for correct in (False, True)
        for attempt in [each for each in result.attempts if each.correct is correct][:1]
    )


def _recorded(folder: Path, keys: Set[Key]) -> tuple[Mapping[Key, TracedTree], str]:
    """Return the recorded trees of these attempts, and why they cannot be read if so."""
    path = tree_lines(folder).path
    try:
        summaries = {(each.problem, each.step): each for each in read_index(path)}
        return {key: read_tree(path, summaries[key]) for key in keys & summaries.keys()}, ""
    except DataError as error:
        return {}, str(error)


def _table(title: str, results: Sequence[ProblemResult], trees: Mapping[Key, TracedTree]) -> Table:
    rows = []
    for result in results[:_MOST_PROBLEMS]:
        traced = trees.get((result.id, 0))
        problem = None if traced is None else traced.tree.problem
        wrong = next(attempt for attempt in result.attempts if not attempt.correct)
        rows.append(
            (
                result.id,
                "" if problem is None else in_a_line(problem.messages[-1].text, _CHARS),
                "" if problem is None else in_a_line(" | ".join(problem.answer), _CHARS),
                _answers(result),
                f"{result.num_correct} of {len(result.attempts)}",
                why(wrong),
            )
        )
    return Table(title, ("problem", "question", "accepted", "answers", "right", "why wrong"), rows)


def _answers(result: ProblemResult) -> str:
    answers = dict.fromkeys(in_a_line(attempt.answer, _CHARS) or "(none)" for attempt in result.attempts)
    return "; ".join(list(answers)[:_MOST_ANSWERS]) + "; \u2026" * (len(answers) > _MOST_ANSWERS)


def why(attempt: AttemptRecord) -> str:
    """Return why an attempt is wrong, in words: its end, its calls that failed, what its score says."""
    parts = attempt.parts
    reasons = []
    if attempt.stop is StopReason.MALFORMED:
        reasons.append("a malformed turn ended it")
    elif attempt.stop not in (StopReason.ANSWERED, StopReason.ENDED):
        reasons.append(f"ended by {attempt.stop}")
    if failed := sum(call.outcome != "executed" for call in attempt.calls):
        reasons.append(f"{failed} of {len(attempt.calls)} calls failed")
    if not attempt.answer.strip():
        reasons.append("no answer")
    for name, reason in (
        ("unread", "the answer could not be read as mathematics"),
        ("timeout", "comparing the answer took too long"),
    ):
        reasons += [reason] if parts.get(name, 0.0) > 0 else []
    if "judge" in parts:
        reasons.append(f"the judge says {'right' if parts['judge'] >= 1.0 else 'wrong'}")
    if parts.get("f1", 0.0) >= _LEAST_F1:
        reasons.append(f"F1 {parts['f1']:.2f}")
    return "; ".join(reasons) or "another answer"


def _texts(result: ProblemResult, trees: Mapping[Key, TracedTree]) -> list[FoldedText]:
    texts = []
    for attempt in result.attempts:
        traced = trees.get((result.id, attempt.attempt))
        is_shown = (result.id, attempt.attempt) in _keys_of_texts((result,))
        if traced is not None and is_shown:
            verdict = "right" if attempt.correct else f"wrong, {why(attempt)}"
            (trajectory,) = traced.tree.trajectories
            turn = trajectory.leaf.turn
            reason = (
                Markup("<p>{}</p>").format(turn.reason) if isinstance(turn, MalformedTurn) else Markup("")
            )
            body = reason + conversation(trajectory.nodes)
            texts.append(FoldedText(f"{result.id}, attempt {attempt.attempt}: {verdict}", body))
    return texts
