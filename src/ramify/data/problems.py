"""Problems from data files: plain rows, questions with answers, and the verl style that ARPO, AEPO and Tool-Star train on.

Columns of a verl-style row: data_source, prompt[role, content], ability, reward_model{ground_truth, ...},
extra_info{index, ...}, metadata. Tool-Star's have a question, text, in place of the prompt.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ramify.chat.conversation import Line
from ramify.core.errors import DataError, RowError
from ramify.core.messages import Message, Problem, ToolResult
from ramify.data.row_columns import (
    ColumnNames,
    Row,
    as_record,
    find_field,
    is_missing,
    is_verl,
    missing_column,
    number_as_text,
    plain_row,
    require_shown,
    with_own_names,
)
from ramify.data.row_messages import is_messages_text, read_lines, text_of
from ramify.data.sources import Data, DataRow, Split, named, read_data, source_notes

_OWN_COLUMNS = ("prompt", "answer", "id")
_PROMPTS = ("prompt", "question", "problem", "messages", "conversations")
_CONVERSATIONS = _PROMPTS[3:]
"""Their last turn of the assistant may be an answer; in a prompt it is the beginning of the policy's turn."""
GOLDS = ("answer", "reward_model.ground_truth", "ground_truth", "solution", "golden_answers", "answers")
"""Columns of the prompt and of the gold; the first that has a value is read."""
_RATIONALE = re.compile(r".*(?<!#)####(?!#)[^\S\n]*(?P<gold>\S[^\n]{0,199}?)\s*", re.DOTALL)
"""GSM8K's worked answers end so, and copies of them whose line breaks are lost."""
_THOUSANDS = re.compile(r"[-+$]*\d{1,3}(?:,\d{3})+(?:\.\d+)?\W?")
"""A number whose commas are no list's, and no text's."""
_ANSWER_TAGS = re.compile(r"\s*<answer>(?P<gold>.*)</answer>\s*", re.DOTALL)
_PRINTED_LIST = re.compile(r"""\s*\[\s*(['"]).*\1\s*,?\s*\]\s*""", re.DOTALL)
"""A list of texts as Python, numpy or JSON prints it."""
_ENDED = re.compile(
    r"(?:(?P<answer></answer>|\\boxed\{\s*[^\s}][^\n]*\}[.$\\)*\]]*)|</(?:tool_call|search|python|function)>)\s*\Z"
)
"""The end of a turn that is whole: an answer, or a call, which only its result can follow."""
_MAX_SOLUTION = 200
"""Characters of a `solution` that is an answer; a worked one has its answer in a box."""
_BROKEN_BOXED = "\x08oxed"


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """The problems of a file in file order, and notes on what was repaired or dropped."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


ENVIRONMENT = "environment"
"""The column that names a problem's environment, where a recipe has several."""


def numbered_problems(count: int, environments: Sequence[str] = ()) -> tuple[Problem, ...]:
    """Return problems that their environment brings: without text, "env-1" and so on; several take turns."""
    return tuple(
        Problem(
            f"env-{number + 1}",
            (Message.of("user", ""),),
            (),
            {ENVIRONMENT: environments[number % len(environments)]} if environments else {},
        )
        for number in range(count)
    )


def load_problems(
    data: Data,
    *,
    bare: bool = False,
    columns: ColumnNames = MappingProxyType({}),
    weights: Sequence[float] = (),
    split: Split = "train",
    limit: int | None = None,
) -> ProblemSet:
    r"""Read rows of a prompt (messages or text), a gold (text, number or a list), optional `id`.

    The prompt stands in the first column of `_PROMPTS` that has a value, the gold in the first of `GOLDS`. Other columns go to
    `Problem.info`, without nulls and NaN; they must be JSON values, because traces contain them. Verl-style rows are read as they
    are, and those with a blank gold are dropped. A backspace before "oxed" in a prompt is repaired to "\boxed". Of a worked
    answer the gold is what follows its last "####". The notes count all three. A row whose gold is the letter or the number of a
    choice that the prompt does not show is refused, and so is a prompt of a system message alone. A row without an id gets "<file stem>-<row>"; rows count from 1 in JSON and from 0 in parquet.

    Args:
        data: Files, folders or data sets of the hub (`data.sources`).
        bare: Rows may lack prompt and answer, which the environment brings.
        columns: By our name for a column the file's.
        weights: For each of the data how often its rows come; copies of a problem have ids of their own.
        split: The part that is read where data have several.
        limit: Read the first `limit` rows only.

    Raises:
        DataError: A file cannot be read or is empty, a row is broken or has no answer, or two rows of a file share an
            id; names file and row.
    """
    problems: list[Problem] = []
    row_of_id: dict[str, DataRow] = {}
    files: dict[Path, int] = {}
    counts = _Counts()
    for row in read_data(data, weights, split, limit):
        file = files.setdefault(row.path, len(files) + 1)
        try:
            problem = _read_problem(row, bare, columns, counts)
            if problem is None:
                continue
            identifier = problem.id
            # Data sets of the hub have files of the same name in folders of the same name.
            for prefix in (f"{row.path.parent.name}/{row.path.stem}", f"{file}"):
                if identifier in row_of_id and row_of_id[identifier].path != row.path:
                    identifier = f"{prefix}/{identifier}"
            if identifier in row_of_id:
                raise ValueError(f"id {identifier!r} is already that of row {row_of_id[identifier].number}")
        except (RowError, ValueError) as error:
            raise DataError(f"{row.where}: {error}") from None
        row_of_id[identifier] = row
        copies = (f"{identifier}#{copy}" if copy else identifier for copy in range(row.copies))
        problems += (replace(problem, id=name) for name in copies)
    if not problems:
        raise DataError(f"{named(data)}: empty; expected at least one row with a prompt and an answer")
    return ProblemSet(tuple(problems), (*source_notes(data, split), *_notes(counts)))


@dataclass(slots=True)
class _Counts:
    """Rows that were changed or dropped while they were read."""

    repaired: int = 0
    rationales: int = 0
    printed_lists: int = 0
    dropped: list[int] = field(default_factory=list)


def _read_problem(row: DataRow, bare: bool, columns: ColumnNames, counts: _Counts) -> Problem | None:
    """Return the problem of a row; None if its gold is blank and it is dropped.

    Raises:
        ValueError, RowError: It cannot be read.
    """
    record = row.record()
    own = with_own_names(record, columns)
    # An environment gets the other columns as they are.
    gold = find_field(own, GOLDS[:2] if bare else GOLDS)
    prompt = find_field(own, _PROMPTS[:1] if bare else _PROMPTS)
    if verl := is_verl(own):
        own = plain_row(own)
    if prompt is None and not bare:
        raise ValueError(missing_column("prompt", _PROMPTS, record, columns))
    stored = (Message.of("user", ""),) if prompt is None else read_messages(prompt[1], prompt[0])
    if not bare:
        if all(message.role == "system" for message in stored):
            raise RowError("no prompt: it holds a system message only")
        stored = with_system_column(stored, own)
    messages = tuple(Message.of(message.role, repair_boxed(message.text)) for message in stored)
    counts.repaired += messages != stored
    is_bare = bare and gold is None
    if gold is None and not bare:
        raise ValueError(missing_column("answer", GOLDS, record, columns))
    golds = () if gold is None else _golds(*gold, drop_blanks=verl)
    counts.printed_lists += any(map(_PRINTED_LIST.fullmatch, golds))
    if not golds and not is_bare:
        counts.dropped.append(row.number)
        return None
    if prompt is not None and not verl:
        answers = tuple(map(_after_rationale, golds))
        counts.rationales += answers != golds
        golds = answers
    if not bare:
        require_shown(own, messages, golds)
    identifier = read_identifier(own, f"{row.path.stem}-{row.number}")
    info = _info(own, "prompt" if prompt is None or verl else prompt[0])
    return Problem(identifier, messages, golds, info)


def _notes(counts: _Counts) -> tuple[str, ...]:
    repaired, rationales, dropped = counts.repaired, counts.rationales, counts.dropped
    notes = []
    if rationales:
        notes.append(
            f"the gold is what follows the last #### in {rationales} worked answer{'s' * (rationales > 1)}"
        )
    if printed_lists := counts.printed_lists:
        notes.append(
            f"answers that are a printed list of texts, such as \"['a', 'b']\", count as one text, in {printed_lists} "
            f"row{'s' * (printed_lists > 1)}. Write lists as JSON if any of the texts is right"
        )
    if repaired:
        notes.append(f"repaired \\boxed in {repaired} prompt{'s' * (repaired > 1)}")
    if dropped:
        plural = "s" * (len(dropped) > 1)
        notes.append(f"dropped {len(dropped)} row{plural} with a blank answer: row{plural} {listed(dropped)}")
    return tuple(notes)


def listed(values: Sequence[object], most: int = 10) -> str:
    """Return the first values for a message: "1, 2, 3, ..."."""
    return ", ".join(map(str, values[:most])) + ", ..." * (len(values) > most)


def _golds(name: str, value: object, *, drop_blanks: bool) -> tuple[str, ...]:
    record = as_record(value)
    if isinstance(record, dict) and [key for key in record if not is_missing(record[key])] == ["target"]:
        name, value = f"{name}.target", record["target"]
    values = value if isinstance(value, list) else [value]
    golds = tuple(_gold(gold, name) for gold in values if not is_missing(gold))
    if not golds:
        raise ValueError(f"no answer: the list in {name!r} is empty")
    filled = tuple(gold for gold in golds if gold.strip())
    if len(filled) < len(golds) and not drop_blanks:
        raise ValueError(f"no answer: {name!r} is blank")
    return tuple(_of_solution(gold) for gold in filled) if name.casefold() == "solution" else filled


def _gold(value: object, name: str) -> str:
    if isinstance(value, str):
        return text_of(value, repr(name))
    if (text := number_as_text(value)) is None:
        raise ValueError(f"{name!r} must be text, a number or a list of them, got {value!r:.60}")
    return text


def _of_solution(text: str) -> str:
    """Return the answer in a `solution`, which some data sets work out, and others put in tags or a box; one with #### as it is.

    Raises:
        ValueError: It is worked out, and has neither.
    """
    tagged = _ANSWER_TAGS.fullmatch(text)
    if tagged is not None:
        return tagged["gold"].strip()
    start = text.rfind("\\boxed{") + len("\\boxed{")
    depth = 1
    for end in range(start, len(text)) if start >= len("\\boxed{") else ():
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[start:end].strip()
    if len(text) > _MAX_SOLUTION and not _RATIONALE.fullmatch(text):
        raise ValueError(
            "no answer: 'solution' is worked out and has no \\boxed{..} and no ####. Name the column of the answer with data.columns"
        )
    return text


def _after_rationale(text: str) -> str:
    match = _RATIONALE.fullmatch(text)
    if match is None:
        return text
    return match["gold"].replace(",", "") if _THOUSANDS.fullmatch(match["gold"]) else match["gold"]


def _info(row: Row, prompt: str) -> dict[str, Any]:
    columns = {key: _plain(row[key], key) for key in row if key not in (*_OWN_COLUMNS, prompt)}
    return {key: value for key, value in columns.items() if value is not None}


def _plain(value: object, column: str) -> object:
    """Return the value as JSON; NaN becomes null, because tables use it for missing numbers."""
    if isinstance(value, dict):
        return {key: _plain(item, column) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, column) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise ValueError(f"column {column!r} holds {value}, expected a finite number")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(
        f"column {column!r} holds a {type(value).__name__}, expected text, numbers, lists or records"
    )


def read_messages(value: object, column: str = "prompt") -> tuple[Message, ...]:
    """Return the messages of a prompt, which is a list of messages, one message, or the text of one from the user.

    A turn of the assistant at the end is one that the policy continues.

    Raises:
        RowError: There is no message, one has another form, a call stands among them, or the last turn is an answer or may be one.
    """
    if (
        isinstance(value, str)
        and not is_messages_text(value)
        and (column.casefold() in _PROMPTS[:3] or not value.lstrip().startswith(("[", "{")))
    ):
        if not value.strip():
            raise RowError(f"no prompt: {column!r} is blank")
        return (Message.of("user", text_of(value, repr(column))),)
    if not isinstance(value, list | dict | str) or not value:
        raise RowError(f"no prompt: {column!r} must be text or a list of {{role, content}}")
    messages = tuple(_prompt_message(line, column) for line in read_lines(value, column, wrapped=False))
    if all(message.role == "assistant" for message in messages):
        raise RowError(f"no prompt: {column!r} holds turns of the assistant only")
    if messages[-1].role == "assistant" and column.casefold() in _CONVERSATIONS:
        raise RowError(
            f"{column!r} ends with a turn of the assistant, which may be an answer. Leave it out, or, if it begins the policy's turn, "
            "name the column 'prompt'"
        )
    _require_begun(messages[-1], column)
    return messages


def _require_begun(last: Message, column: str) -> None:
    """Require that a turn of the assistant at the end of a prompt is one that the policy can continue.

    Raises:
        RowError: It is whole.
    """
    is_thinking = last.text.rfind("<think>") > last.text.rfind("</think>")
    if last.role == "assistant" and not is_thinking and (ended := _ENDED.search(last.text)):
        what = "an answer" if ended["answer"] else "a call without a result"
        raise RowError(
            f"{column!r} ends with {what}, which the policy cannot continue. Leave the last turn out"
        )


def with_system_column(messages: tuple[Message, ...], row: Row) -> tuple[Message, ...]:
    """Put the column `system` of a row in front of a prompt that has no system message.

    Raises:
        RowError: It is not text.
    """
    value = row.get("system")
    is_blank = isinstance(value, str) and not value.strip()
    if is_missing(value) or is_blank or any(message.role == "system" for message in messages):
        return messages
    return (Message.of("system", text_of(value, "'system'")), *messages)


def _prompt_message(line: Line, column: str) -> Message:
    if isinstance(line, Message):
        return line
    if isinstance(line, ToolResult):
        return Message.of("tool", line.text)
    if line.calls or line.thought:
        raise RowError(f"a call or a thought in {column!r}", "a prompt's messages are texts")
    return Message.of("assistant", line.text)


def read_identifier(row: Row, default: str) -> str:
    """Return the `id` of a row; `default` if it has none.

    Raises:
        ValueError: It is neither text nor a whole number.
    """
    value = row.get("id")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise ValueError(f"'id' must be text or a whole number, got {value!r:.40}")
    return text_of(str(value), "'id'")


def repair_boxed(text: str) -> str:
    r"""Repair a defect of published prompts: a backspace (U+0008) before "oxed" where "\boxed" was meant."""
    return text.replace(_BROKEN_BOXED, r"\boxed")


def control_notes(dataset: Path | str, control_tokens: Sequence[str | None]) -> tuple[str, ...]:
    """Return a note on the rows that spell a control token; `control_tokens` has one of them, or None, for each row."""
    spelt = [token for token in control_tokens if token is not None]
    if not spelt:
        return ()
    return (
        f"{dataset}: {len(spelt)} of {len(control_tokens)} rows spell a token that only the chat template may write, such as "
        f"{spelt[0]!r}; it is read as ordinary text",
    )
