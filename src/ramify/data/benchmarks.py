"""The fourteen benchmarks of the papers (ARPO, arXiv 2507.19849; AEPO, arXiv 2510.14545) and BrowseComp-Plus (arXiv 2508.06600)."""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from ramify.core.errors import DataError, RowError
from ramify.core.messages import Message, Problem
from ramify.data.benchmark_files import (
    PLAIN_QUESTIONS,
    GoldForm,
    find_benchmark,
    is_sealed,
    read_golds,
    read_question,
    read_rows,
)
from ramify.data.overlap import duplicate_notes
from ramify.data.problems import ProblemSet, listed, read_messages, repair_boxed, with_system_column
from ramify.data.row_columns import find_field, require_shown
from ramify.data.row_messages import is_messages_text
from ramify.data.tables import HUB_PREFIX

Task: TypeAlias = Literal["math", "qa"]

_LANGUAGES = {
    "zh": "zh",
    "cn": "zh",
    "chinese": "zh",
    "中文": "zh",
    "en": "en",
    "english": "en",
    "英文": "en",
}
_CHINESE = re.compile("[\u4e00-\u9fff]")
_LATIN_WORD = re.compile("[A-Za-z]{2,}")
LANGUAGES = ("en", "zh")
_CONVERSATIONS = ("prompt", "question", "problem", "messages", "conversations")
"""Fields that may hold a list of messages. Beside one, verl's rows have the bare question in `extra_info.question`."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The format of a benchmark's rows.

    Attributes:
        name: In lower case.
        task: Kind of answers; decides how they are compared.
        questions, answers, ids, levels, categories: Names of fields; the first that a row has is used. "info.domain" is
            the field `domain` of the record `info`.
        aliases: Field with more accepted answers.
        gold: Format of an answer.
        attachment: Field with a file or an image that the question needs; rows with one are dropped.
        evidence: Field with the documents of a corpus that the answer rests on; their ids go to `info`.
        closing: A request that follows the question.
    """

    name: str
    task: Task
    questions: tuple[str, ...] = PLAIN_QUESTIONS
    answers: tuple[str, ...] = ("answer", "answers", "golden_answers")
    aliases: str | None = None
    ids: tuple[str, ...] = ("id",)
    levels: tuple[str, ...] = ("level",)
    categories: tuple[str, ...] = ("category",)
    gold: GoldForm = "plain"
    attachment: str | None = None
    evidence: str | None = None
    closing: str = ""


BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        each.name: each
        for each in (
            Benchmark("aime24", "math"),
            Benchmark("aime25", "math"),
            Benchmark("math500", "math", ids=("unique_id", "id"), categories=("subject", "category")),
            Benchmark("gsm8k", "math", ids=("idx", "id"), gold="rationale"),
            Benchmark("math", "math", ids=("unique_id", "id"), categories=("subject", "type", "category")),
            Benchmark("hotpotqa", "qa", ids=("id", "_id"), categories=("type", "category")),
            Benchmark("2wiki", "qa", ids=("id", "_id"), categories=("type", "category")),
            Benchmark("musique", "qa", aliases="answer_aliases"),
            Benchmark("bamboogle", "qa"),
            Benchmark(
                "webwalker",
                "qa",
                levels=("difficulty_level", "info.difficulty_level", "level"),
                categories=("domain", "info.domain", "category"),
            ),
            Benchmark(
                "gaia",
                "qa",
                answers=("answer", "final answer"),
                ids=("task_id", "id"),
                attachment="file_name",
            ),
            Benchmark("hle", "qa", attachment="image"),
            Benchmark("simpleqa", "qa", categories=("topic", "metadata.topic", "category")),
            Benchmark("xbench", "qa"),
            Benchmark(
                "browsecomp-plus",
                "qa",
                questions=("query", "question"),
                ids=("query_id", "id"),
                evidence="evidence_docs",
                closing='Before you answer, state how sure you are of it in a line such as "Confidence: 80%".',
            ),
        )
    }
)


def find_named(name: str) -> Benchmark:
    """Return the benchmark of that name, regardless of case.

    Raises:
        DataError: There is no benchmark of that name.
    """
    benchmark = BENCHMARKS.get(name.casefold())
    if benchmark is None:
        close = difflib.get_close_matches(name.casefold(), BENCHMARKS, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise DataError(
            f"no benchmark is called {name!r}{meant} (for your own file give its path; known: {', '.join(BENCHMARKS)})"
        )
    return benchmark


def parse_dataset(dataset: str) -> tuple[str, str] | None:
    """Return the benchmark that `dataset` names, and its location; None for a problem file of the user's own.

    Args:
        dataset: "NAME=PLACE", a folder NAME, or a file NAME/test.jsonl (or .parquet).

    Raises:
        DataError: NAME=PLACE with an unknown name, a hub id without a name, a name without a location, or a folder of benchmarks.
    """
    name, equals, location = dataset.partition("=")
    if equals and not Path(dataset).exists():
        if not location:
            raise DataError(
                f"{dataset}: expected {find_named(name).name}=PLACE, a file, a folder or hf:org/name"
            )
        return find_named(name).name, location
    if dataset.startswith(HUB_PREFIX):
        return None
    path = Path(dataset)
    folder = path.absolute().parent if path.stem == "test" else path.absolute()
    if folder.name.casefold() in BENCHMARKS and path.exists() and (path.is_dir() or path.stem == "test"):
        return folder.name.casefold(), dataset
    if dataset.casefold() in BENCHMARKS:
        raise DataError(
            f"{dataset}: expected {dataset.casefold()}=PLACE, and PLACE is a file, a folder or hf:org/name"
        )
    if inside := [each for each in _benchmark_folders(path) if any(each.glob("test.*"))]:
        raise DataError(
            f"{dataset}: holds the benchmarks {', '.join(each.name for each in inside)}. Name each of them in a list, such as "
            f'["{inside[0]}"]'
        )
    return None


def _benchmark_folders(path: Path) -> list[Path]:
    """Return the folders in a folder that have a benchmark's name; none if it is no folder."""
    if not path.is_dir():
        return []
    return sorted(each for each in path.iterdir() if each.is_dir() and each.name.casefold() in BENCHMARKS)


def load_benchmark(name: str, location: str | Path, limit: int | None = None) -> ProblemSet:
    """Read a benchmark; each problem is one user message, the question, unless the row has messages of its own.

    Ids are "<name>/<id of the row>", or "<name>/<number of the row>" if the row has no id. If rows share an id, the
    later ones get the suffix "#<number>". `info` holds benchmark, task, language ("en" or "zh"), kind (the name), row,
    and level and category if the row has them. Rows count from 0 in files of any kind.

    Args:
        name: One of `BENCHMARKS`, regardless of case.
        location: A folder, a file or "hf:org/name[@revision][:table]" (see `find_benchmark`).
        limit: Read the first `limit` rows only.
    Raises:
        DataError: Nothing is found at `location`, or a row is broken; one line with file, row and field.
    """
    benchmark = find_named(name)
    files, notes = find_benchmark(benchmark.name, str(location))
    problems: list[Problem] = []
    taken: set[str] = set()
    renamed: list[int] = []
    attached: list[int] = []
    for row in islice(read_rows(files), limit):
        try:
            if benchmark.attachment and find_text(row.values, (benchmark.attachment,)):
                attached.append(row.number)
                continue
            problem = _problem(benchmark, row.values, row.number)
        except (ValueError, RowError) as error:
            raise DataError(f"{row.where}: {error}") from None
        identifier = problem.id
        while identifier in taken:
            identifier += f"#{row.number}"
        if identifier != problem.id:
            renamed.append(row.number)
            problem = Problem(identifier, problem.messages, problem.answer, problem.info)
        taken.add(identifier)
        problems.append(problem)
    if not problems:
        raise DataError(f"{files[0]}: empty; expected at least one row of {benchmark.name} with a question")
    repeated = (f"{benchmark.name}: {note}" for note in duplicate_notes(problems))
    return ProblemSet(tuple(problems), (*notes, *_notes(benchmark, renamed, attached), *repeated))


def find_text(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of the fields `names` that has a value, as stripped text; None if there is none or it is blank.

    Raises:
        ValueError: The value is neither text nor a number.
    """
    field = find_field(values, names)
    if field is None:
        return None
    key, value = field
    if isinstance(value, dict):  # an image as parquet holds it: {bytes, path}
        return key if any(value.values()) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"field {key!r} must be text or a number, got {type(value).__name__}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None


def _problem(benchmark: Benchmark, values: Mapping[str, Any], number: int) -> Problem:
    conversation = _conversation(values)
    question = read_question(values, benchmark.questions if conversation is None else (conversation[0],))
    if is_sealed(question):
        raise ValueError("the question is encrypted, and the row has no 'canary' with the key")
    language = find_text(values, ("language", "lang", "info.language", "info.lang")) or ""
    info: dict[str, Any] = {
        "benchmark": benchmark.name,
        "task": benchmark.task,
        "level": find_text(values, benchmark.levels),
        "category": find_text(values, benchmark.categories),
        "language": _LANGUAGES.get(language.casefold(), language_of(question)),
        "kind": benchmark.name,
        "row": number,
    }
    if benchmark.evidence is not None:
        info |= {"question": question, benchmark.evidence: _document_ids(values, benchmark.evidence)}
    identifier = find_text(values, benchmark.ids) or str(number)
    shown = f"{question}\n\n{benchmark.closing}" if benchmark.closing else question
    messages, golds = _messages(values, shown, conversation), _answers(benchmark, values)
    require_shown(values, messages, golds)
    return Problem(
        f"{benchmark.name}/{identifier}",
        messages,
        golds,
        {key: value for key, value in info.items() if value is not None},
    )


def _conversation(values: Mapping[str, Any]) -> tuple[str, object] | None:
    """Return the name and the value of the first field that holds a list of messages, which says more than a question."""
    for field in filter(None, (find_field(values, (name,)) for name in _CONVERSATIONS)):
        first = field[1][0] if isinstance(field[1], list) and field[1] else None
        if is_messages_text(field[1]) or (isinstance(first, dict) and not {"role", "from"}.isdisjoint(first)):
            return field
    return None


def _messages(
    values: Mapping[str, Any], question: str, conversation: tuple[str, object] | None
) -> tuple[Message, ...]:
    messages: tuple[Message, ...] = (Message.of("user", question),)
    if conversation is not None:
        stored = read_messages(conversation[1], conversation[0])
        messages = tuple(Message.of(message.role, repair_boxed(message.text)) for message in stored)
    return with_system_column(messages, values)


def language_of(text: str) -> str:
    """Return "zh" for a text with more Chinese characters than Latin words, else "en"."""
    return "zh" if len(_CHINESE.findall(text)) > len(_LATIN_WORD.findall(text)) else "en"


def _document_ids(values: Mapping[str, Any], field: str) -> list[str] | None:
    """Return the ids of documents, each the id itself or a record with `docid` (or `id`); None if the row has none.

    Raises:
        ValueError: One has no id.
    """
    documents = values.get(field)
    if not documents:
        return None
    if not isinstance(documents, list):
        raise ValueError(f"field {field!r} must be a list of documents, got {type(documents).__name__}")
    ids = [each.get("docid", each.get("id")) if isinstance(each, Mapping) else each for each in documents]
    if any(isinstance(each, bool) or not isinstance(each, str | int) for each in ids):
        raise ValueError(f"field {field!r} holds a document without a 'docid'")
    return list(map(str, ids))


def _answers(benchmark: Benchmark, values: Mapping[str, Any]) -> tuple[str, ...]:
    field = find_field(values, benchmark.answers)
    if field is None:
        others = ", ".join(map(repr, benchmark.answers[1:]))
        raise ValueError(
            f"no field {benchmark.answers[0]!r} (nor {others}) with a value; found {', '.join(values)}"
        )
    key, value = field
    more = find_field(values, (benchmark.aliases,)) if benchmark.aliases else None
    try:
        golds = read_golds(value, benchmark.gold)
        if more is None or more[1] == []:
            return golds
        key = more[0]
        return tuple(dict.fromkeys((*golds, *read_golds(more[1], benchmark.gold))))
    except ValueError as error:
        raise ValueError(f"field {key!r} {error}") from None


def _notes(benchmark: Benchmark, renamed: list[int], attached: list[int]) -> list[str]:
    notes = []
    if attached:
        notes.append(
            f"{benchmark.name}: dropped {_rows(attached)} with an attachment ({benchmark.attachment}), which no tool reads"
        )
    if renamed:
        notes.append(
            f"{benchmark.name}: {_rows(renamed)} had the id of an earlier row and got one of their own"
        )
    return notes


def _rows(numbers: list[int]) -> str:
    return f"{len(numbers)} row{'s' * (len(numbers) > 1)} ({listed(numbers)})"


def instructions(tools: Collection[str], language: str, dialect: str = "tags") -> str:
    """Return the system message for an agent with these tools.

    For the tag dialect it explains search and python only; the renderer describes other tools. In the hermes dialect
    the chat template describes all of them.

    Args:
        tools: Names of the tools.
        language: Language of the question: "zh", or anything else for English.
        dialect: The recipe's `model.dialect`.
    """
    known = language if language in LANGUAGES else "en"
    kind = (
        dialect
        if dialect != "tags"
        else "_".join(name for name in ("search", "python") if name in tools) or "no_tools"
    )
    # The examples in it are real calls, because models copy placeholders such as "your query here".
    text = (files("ramify.data") / "instructions" / f"{kind}_{known}.txt").read_text(encoding="utf-8")
    return text.strip()
