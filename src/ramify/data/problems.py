"""Problems from a data file: JSONL or parquet, plain or in the verl style that ARPO, AEPO and Tool-Star train on.

Columns of a verl-style row: data_source, prompt[role, content], ability, reward_model{ground_truth, ...},
extra_info{index, ...}, metadata. Tool-Star's have a question, text, in place of the prompt.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from ramify.core.errors import DataError
from ramify.core.messages import Message, Problem, Role
from ramify.data.row_files import JSONL_COUNTING, PARQUET_COUNTING, read_jsonl, read_parquet

_ROLES: tuple[str, ...] = get_args(Role)
_OWN_COLUMNS = ("prompt", "answer", "id")
_OTHER_FORMATS = ("conversations", "messages", "instruction", "question")
"""Columns of rows in the formats of ShareGPT, OpenAI, Alpaca and benchmarks."""
_Row: TypeAlias = Mapping[str, Any]
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


def load_problems(path: Path, *, bare: bool = False) -> ProblemSet:
    r"""Read `path`: rows of `prompt` (messages or text), `answer` (text, number or a list), optional `id`.

    Other columns go to `Problem.info`, without nulls and NaN; they must be JSON values, because traces contain them. A
    verl-style parquet is read as it is, and its rows with a blank gold are dropped. A backspace before "oxed" in a
    prompt is repaired to "\boxed". The notes count both. A row without an id gets "<file stem>-<row>"; rows count
    from 1 in JSONL and from 0 in parquet. If `bare`, rows may lack prompt and answer, which the environment brings.

    Raises:
        DataError: The file cannot be read or is empty, a row is broken or has no answer, or two rows share an
            id; names file and row.
    """
    rows, counting, verl = _open(path, bare)
    problems: list[Problem] = []
    row_of_id: dict[str, int] = {}
    repaired = 0
    dropped: list[int] = []
    for number, row in rows:
        try:
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, got {type(row).__name__}")
            if verl:
                row = plain_row(row)
            stored = (Message.of("user", ""),) if bare and row.get("prompt") is None else read_messages(row)
            messages = tuple(Message.of(message.role, repair_boxed(message.text)) for message in stored)
            repaired += messages != stored
            is_bare = bare and row.get("answer") is None
            golds = () if is_bare else _answer(row, drop_blanks=verl)
            if not golds and not is_bare:
                dropped.append(number)
                continue
            identifier = read_identifier(row, f"{path.stem}-{number}")
            if identifier in row_of_id:
                raise ValueError(f"id {identifier!r} is already that of row {row_of_id[identifier]}")
            info = _info(row)
        except ValueError as error:
            raise DataError(f"{path} row {number} ({counting}): {error}") from None
        row_of_id[identifier] = number
        problems.append(Problem(identifier, messages, golds, info))
    if not problems:
        raise DataError(f"{path}: empty; expected at least one row with a prompt and an answer")
    return ProblemSet(tuple(problems), _notes(repaired, dropped))


def _notes(repaired: int, dropped: list[int]) -> tuple[str, ...]:
    notes = []
    if repaired:
        notes.append(f"repaired \\boxed in {repaired} prompt{'s' * (repaired > 1)}")
    if dropped:
        plural = "s" * (len(dropped) > 1)
        notes.append(f"dropped {len(dropped)} row{plural} with a blank answer: row{plural} {listed(dropped)}")
    return tuple(notes)


def listed(values: Sequence[object], most: int = 10) -> str:
    """Return the first values for a message: "1, 2, 3, ..."."""
    return ", ".join(map(str, values[:most])) + ", ..." * (len(values) > most)


def _open(path: Path, bare: bool) -> tuple[Iterator[tuple[int, Any]], str, bool]:
    """Return the numbered rows of a file, how they are numbered, and whether they are in the verl style."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; expected .jsonl or .parquet")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".jsonl":
        return read_jsonl(path), JSONL_COUNTING, False
    columns, rows = read_parquet(path)
    verl = is_verl(columns)
    asks = "question" if verl and "prompt" not in columns and "question" in columns else "prompt"
    for needed in () if bare else (asks, "reward_model" if verl else "answer"):
        if needed not in columns:
            raise DataError(f"{path}: no column {needed!r}; found {', '.join(columns) or 'none'}")
    return rows, PARQUET_COUNTING, verl


def _answer(row: _Row, drop_blanks: bool) -> tuple[str, ...]:
    value = row.get("answer")
    golds = tuple(_gold(gold) for gold in (value if isinstance(value, list) else [value]))
    if not golds:
        raise ValueError("no answer: the list of answers is empty")
    filled = tuple(gold for gold in golds if gold.strip())
    if len(filled) < len(golds) and not drop_blanks:
        raise ValueError("no answer: it is blank")
    return filled


def _gold(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise ValueError("no answer: 'answer' is missing or null")
    if isinstance(value, str):
        return _text(value, "'answer'")
    if isinstance(value, bool) or not isinstance(value, int | float) or value in (math.inf, -math.inf):
        raise ValueError(f"'answer' must be text, a number or a list of them, got {value!r:.40}")
    # Tables turn a column of integers into floats if it contains a null.
    return str(int(value)) if value == int(value) else repr(value)


def _info(row: _Row) -> dict[str, Any]:
    columns = {key: _plain(row[key], key) for key in row if key not in _OWN_COLUMNS}
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


def read_messages(row: _Row) -> tuple[Message, ...]:
    """Return the messages of a row's `prompt`, which is a list of {role, content} or the text of one user message.

    Raises:
        ValueError: There is no message, or one has another form.
    """
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt.strip():
        return (Message.of("user", _text(prompt, "'prompt'")),)
    if not isinstance(prompt, list) or not prompt:
        other = next((f"; {key!r} belongs to another format" for key in _OTHER_FORMATS if key in row), "")
        raise ValueError(f"no prompt: 'prompt' must be text or a list of {{role, content}}{other}")
    return tuple(_message(message, number) for number, message in enumerate(prompt, 1))


def _message(message: object, number: int) -> Message:
    where = f"message {number} of 'prompt'"
    if not isinstance(message, dict) or {"role", "content"} - message.keys():
        sharegpt = isinstance(message, dict) and {"from", "value"} <= message.keys()
        raise ValueError(f"{where} must be {{role, content}}{', not {from, value} (ShareGPT)' * sharegpt}")
    unread = [key for key in message if key not in ("role", "content") and message[key] is not None]
    if unread:
        raise ValueError(f"{where} has {unread[0]!r}; only role and content are read")
    if message["role"] not in _ROLES:
        raise ValueError(f"{where} has role {message['role']!r}; expected one of {', '.join(_ROLES)}")
    return Message.of(cast(Role, message["role"]), _text(message["content"], where))


def read_identifier(row: _Row, default: str) -> str:
    """Return the `id` of a row; `default` if it has none.

    Raises:
        ValueError: It is neither text nor a whole number.
    """
    value = row.get("id")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise ValueError(f"'id' must be text or a whole number, got {value!r:.40}")
    return _text(str(value), "'id'")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be text, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds a lone surrogate, which is valid JSON but not text") from None
    return value


def is_verl(columns: Collection[str]) -> bool:
    """Return True if a table with these columns is in the verl style."""
    return "reward_model" in columns and "answer" not in columns


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verl row as {"prompt", "answer", free columns}; the fields of extra_info become free columns.

    Raises:
        ValueError: `reward_model` or `extra_info` is not a record.
    """
    reward_model = _record(row, "reward_model")
    extra_info = _record(row, "extra_info")
    plain = {key: row[key] for key in row if key not in ("reward_model", "extra_info")}
    if "prompt" not in plain and "question" in plain:
        plain["prompt"] = plain.pop("question")
    # extra_info may contain a "prompt", an "answer" or an "id"; they must not replace our columns.
    free = {key: value for key, value in extra_info.items() if key not in ("prompt", "answer", "id")}
    return {**free, **plain, "answer": reward_model.get("ground_truth")}


def repair_boxed(text: str) -> str:
    r"""Repair a defect of published prompts: a backspace (U+0008) before "oxed" where "\boxed" was meant."""
    return text.replace(_BROKEN_BOXED, r"\boxed")


def _record(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key!r} must be a record, got {type(value).__name__}")
    return value


def control_notes(dataset: Path | str, control_tokens: Sequence[str | None]) -> tuple[str, ...]:
    """Return a note on the rows that spell a control token; `control_tokens` has one of them, or None, for each row."""
    spelt = [token for token in control_tokens if token is not None]
    if not spelt:
        return ()
    return (
        f"{dataset}: {len(spelt)} of {len(control_tokens)} rows spell a token that only the chat template may write, such as "
        f"{spelt[0]!r}; it is read as ordinary text",
    )
