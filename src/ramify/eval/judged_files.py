"""A judge for the answers of a file of results, as ARPO's and Tool-Star's evaluations and others write them."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ramify.core.errors import DataError
from ramify.eval.judging import Candidate, Judging
from ramify.eval.result_rows import ResultRow, is_gold, read_result_rows
from ramify.eval.statistics import judge_agreement
from ramify.files.durable import replace_file
from ramify.rewards.answer_scores import accepted_answers
from ramify.rewards.averages import RowAverages
from ramify.rewards.responses import text_scores
from ramify.runs.keyed_lines import Key

Task = Literal["math", "qa"]
Scores = Mapping[str, float | str | bool]

_CHUNK = 1 << 20


def judge_file(path: Path, task: Task, judging: Judging) -> dict[str, Any]:
    """Judge every row of a file, and write `summary.json` into the folder of the verdicts; returns its content.

    The file is read twice, row by row: the first time for the other scores, so that a broken row is refused before the judge gets
    a request.

    Args:
        path: The file.
        task: As for `ramify score`.
        judging: The judge and the folder of the verdicts.

    Raises:
        UserError: The file or a row cannot be read, the folder has other verdicts, or the judge is down.
        RunInterruptedError: Ctrl-C or SIGTERM; the verdicts so far are saved.
    """
    scored: list[Scores] = []
    identifiers: set[str] = set()
    repeated = without_gold = 0
    for row in read_result_rows(path):
        if not row.question.strip():
            raise DataError(f"{row.where}: expected a question, as question, input or Prompt")
        scores = text_scores(row.response, row.gold, task)
        scored.append({name: value for name, value in scores.items() if name != "prediction"})
        without_gold += not is_gold(row.gold)
        if row.id is not None:
            repeated += str(row.id) in identifiers
            identifiers.add(str(row.id))
    if repeated:
        judging.console.note(
            f"{path}: {repeated} rows have the id of an earlier row; each row is judged and counted by itself"
        )
    with judging.claim({"file": path.name, "sha256": _sha256(path), "task": task}):
        verdicts = judging.judge_all(_candidates(path, task), len(scored))
        summary = _summary(scored, verdicts, task)
        summary |= {"no_gold": without_gold} if without_gold else {}
        summary["model"] = judging.judge.identity["model"]
        replace_file(judging.folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def _candidates(path: Path, task: Task) -> Iterator[Candidate]:
    for number, row in enumerate(read_result_rows(path), start=1):
        golds = tuple(accepted_answers(row.gold, spelled_lists=task == "qa"))
        yield Candidate(_key(number), row.question, golds, _answer(row, task))


def _answer(row: ResultRow, task: Task) -> str:
    """Return the answer in the response, else the one that the file has; "" of a run that failed."""
    scores = text_scores(row.response, row.gold, task)
    if scores["is_valid_answer"]:
        return str(scores["prediction"])
    return "" if str(scores["prediction"]).strip() else row.prediction or ""


def _summary(scored: list[Scores], verdicts: Mapping[Key, bool], task: Task) -> dict[str, Any]:
    averages = RowAverages(task)
    parts: list[dict[str, float]] = []
    for number, scores in enumerate(scored, start=1):
        verdict = verdicts.get(_key(number))
        averages.add(scores, None if verdict is None else float(verdict))
        numbers = {name: float(value) for name, value in scores.items() if isinstance(value, int | float)}
        parts.append(numbers if verdict is None else {**numbers, "judge": float(verdict)})
    return {
        **averages.result(),
        "judge": {
            "judged": len(verdicts),
            "right": sum(verdicts.values()),
            "without_verdict": len(scored) - len(verdicts),
            "agreement": judge_agreement(parts),
        },
    }


def _key(number: int) -> Key:
    return f"row {number}", 0


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
