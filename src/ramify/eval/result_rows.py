"""Files of results that are only text: lines of responses, and the result files of ARPO and Tool-Star as they are.

ARPO's rows have input, output, prediction, answer (`*_output_*.json`, one array), Tool-Star's Prompt, Full_output, Output, answer.
Files are streamed: none is ever whole in memory.
"""

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError, RowError
from ramify.core.messages import Problem
from ramify.data.row_files import read_text_rows
from ramify.eval.results import read_records, tree_lines
from ramify.obs.trace import each_tree
from ramify.rewards.extract import response_of
from ramify.rewards.responses import REPORTED

_RESPONSES = ("response", "output", "completion", "Full_output")
_GOLDS = ("gold", "golds", "answer")
_QUESTIONS = ("question", "input", "Prompt", "prompt")
_VERDICTS = ("llm_equal", "judge")
_OTHER_FILES = {
    b"PAR1": "a parquet file",
    b"\x1f\x8b": "a gzip file; unpack it",
    b"(\xb5/\xfd": "a zstd file; unpack it",
    b"PK\x03\x04": "a zip file; unpack it",
    codecs.BOM_UTF16_LE: "UTF-16 text",
    codecs.BOM_UTF16_BE: "UTF-16 text",
}


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One response.

    Attributes:
        where: File and row, for messages.
        id: The row's own id; None if it has none.
        response: The whole response, with its calls and results.
        gold: The accepted answer or a list of them, as the file has it.
        question: The question; "" if the file has none.
        prediction: The answer as the file has it; None if it has none. Tool-Star's `Output` is one.
        verdict: A judge's verdict that the file has; None if it has none.
    """

    where: str
    id: object
    response: str
    gold: object
    question: str = ""
    prediction: str | None = None
    verdict: float | None = None


def read_objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a file of JSON lines, or of one JSON array, each with its file and row for messages.

    Raises:
        DataError: The file or a row cannot be read; names it.
    """
    require_text(path)
    is_empty = True
    for where, row in read_text_rows(path):
        is_empty = False
        if isinstance(row, RowError):
            raise DataError(f"{where}: not JSON: {row}")
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, got {type(row).__name__}")
        yield where, row
    if is_empty:
        raise DataError(f"{path}: the file is empty; expected a JSONL file or one JSON array of objects")


def read_result_rows(path: Path) -> Iterator[ResultRow]:
    """Yield the responses of a file.

    Raises:
        DataError: The file or a row cannot be read, or a row has no response or no gold; names it.
    """
    for where, row in read_objects(path):
        response, gold = _field(where, row, _RESPONSES), _field(where, row, _GOLDS)
        if not isinstance(response, str):
            raise DataError(f"{where}: expected a text as its response, got {type(response).__name__}")
        question = next((row[name] for name in _QUESTIONS if isinstance(row.get(name), str)), "")
        prediction = row.get("Output" if "Full_output" in row else "prediction")
        verdict = next((row[name] for name in _VERDICTS if type(row.get(name)) in (int, float, bool)), None)
        yield ResultRow(
            where,
            row.get("id"),
            response,
            gold,
            question,
            prediction if isinstance(prediction, str) else None,
            None if verdict is None else float(verdict),
        )


def read_run_scores(
    folder: Path, task: str
) -> Iterator[tuple[Mapping[str, float | str | bool], float | None]]:
    """Yield for each attempt of an evaluation its recorded scores, as a row of `ramify score` has them, and its verdict.

    Calls are those that got a result, from recorded events; nothing is read from text.

    Raises:
        DataError: There is no evaluation, or its reward has not the score that decides.
    """
    records = read_records(folder)
    if not records:
        raise DataError(f"{folder}: expected the folder of an evaluation, found no attempts in it")
    decides = "math_equal" if task == "math" else "f1"
    for record in records:
        if decides not in record.parts and record.parts:
            raise DataError(f"{folder}: its reward does not report {decides}. Score a file of its responses")
        calls = [call.tool for call in record.calls if call.status != "over_limit"]
        scores = {name: record.parts.get(name, 0.0) for name in REPORTED}
        yield (
            {
                "is_valid_answer": bool(record.answer.strip()),
                **scores,
                "python_calls": calls.count("python"),
                "search_calls": calls.count("search"),
                "tool_counts": len(calls),
            },
            record.parts.get("judge"),
        )


def read_run_responses(folder: Path, task: str | None = None) -> Iterator[tuple[Problem, ResultRow]]:
    """Yield the attempts of an evaluation as texts, which is what the released code scores; its mathematics has one gold, no list.

    `task` is math or qa; None: that of each problem's benchmark.

    Raises:
        DataError: There are no traces, one cannot be read, or a problem has no accepted answer.
    """
    for traced in each_tree(tree_lines(folder).path):
        problem, attempt = traced.tree.problem, traced.tree.key.step
        where = f"{folder}: problem {problem.id!r}, attempt {attempt}"
        if not problem.answer:
            raise DataError(f"{where}: has no accepted answer. The released code scores answers only")
        is_math = (task or problem.info.get("task")) == "math"
        gold = problem.answer[0] if is_math else list(problem.answer)
        response = response_of(traced.tree.trajectories[0])
        yield problem, ResultRow(where, f"{problem.id}/{attempt}", response, gold)


def is_gold(gold: object) -> bool:
    """Return True if an answer can match this gold. Others score 0 always, so their count reveals a broken file."""
    if isinstance(gold, list):
        return any(map(is_gold, gold))
    return bool(gold.strip()) if isinstance(gold, str) else type(gold) in (int, float)


def require_text(path: Path) -> None:
    """Refuse files of other kinds by their first bytes.

    Raises:
        DataError: It is packed, a table or in another encoding, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise DataError(f"{path}: expected a JSONL file or a JSON array: {error.strerror}") from None
    for start, kind in _OTHER_FILES.items():
        if head.startswith(start):
            raise DataError(f"{path}: expected a JSONL file (UTF-8, one object a line), found {kind}")


def _field(where: str, row: Mapping[str, Any], names: tuple[str, ...]) -> object:
    name = next((name for name in names if name in row), None)
    if name is None:
        raise DataError(
            f"{where}: expected one of the keys {', '.join(names)}, found {', '.join(row)[:200] or 'none'}"
        )
    return row[name]
