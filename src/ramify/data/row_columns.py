"""The columns of a row: under the recipe's names for them, nulls as absent, and by name where one is missing; choices of a question."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from ramify.core.errors import RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import Message

Row: TypeAlias = Mapping[str, Any]
ColumnNames: TypeAlias = Mapping[str, str | tuple[str, ...]]
"""By our name for a column the file's, or those of the file whose texts together are ours."""

_MEANT: Mapping[str, tuple[str, ...]] = {
    "prompt": ("question", "problem", "query", "input", "instruction", "messages", "conversations", "user"),
    "answer": ("solution", "ground_truth", "gold", "target", "label", "final_answer", "output", "response", "answers"),
    "output": ("response", "answer", "completion", "solution"),
    "completion": ("response", "output", "answer", "solution"),
}  # fmt: skip
"""Columns of other projects that mean nearly the same, for hints."""
_MAX_SHOWN = 300


def is_missing(value: object) -> bool:
    """Return True if a field is empty: null, or NaN, which tables use for null."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def number_as_text(value: object) -> str | None:
    """Return a finite number as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in (math.inf, -math.inf):
        return None
    # Tables turn a column of integers into floats if it contains a null.
    return str(int(value)) if value == int(value) else repr(value)


def without_nulls(value: Any) -> Any:  # noqa: ANN401 - any value of a table
    """Return records without their nulls: all records of a table's column have the fields of any of them."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def as_record(value: Any) -> Any:  # noqa: ANN401 - any value of a row
    """Return a record that a column of texts holds as JSON; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return parse_json(value, unique_keys=True)
        except ValueError:
            return value
    return value


def find_field(row: Row, names: Sequence[str]) -> tuple[str, Any] | None:
    """Return the first of `names` for which the row has a value: the name as the row spells it, and the value; else None.

    Case is ignored where no column has the name's own. "info.level" is the field `level` of the record `info`, also where that is JSON
    text.
    """
    for name in names:
        if not is_missing(row.get(name)):
            return name, row[name]
        outer, dot, inner = name.casefold().partition(".")
        for key, value in row.items():
            if key.casefold() != outer or is_missing(value):
                continue
            if not dot:
                return key, value
            record = as_record(value)
            below = find_field(record, (inner,)) if isinstance(record, dict) else None
            if below is not None:
                return f"{key}.{below[0]}", below[1]
    return None


def with_own_names(row: Row, columns: ColumnNames) -> Row:
    """Return a row in which the columns that `data.columns` names have our names.

    Args:
        row: The row of a file.
        columns: By our name the file's; "reward_model.ground_truth" is a field of a record. The texts of several are joined, a line
            break between them; those without a value are left out.

    Raises:
        RowError: The row does not have such a column at all.
    """
    if not columns:
        return row
    theirs = {own: (name,) if isinstance(name, str) else name for own, name in columns.items()}
    taken = {*columns, *(name for names in theirs.values() for name in names)}
    renamed = {key: value for key, value in row.items() if key not in taken}
    for own, names in theirs.items():
        values = []
        for name in names:
            field = (name, row[name]) if name in row else find_field(row, (name,))
            if field is not None:
                values.append(field[1])
            elif name.partition(".")[0] not in row:
                raise RowError(
                    f"no column {name!r}, which data.columns.{own} names", f"the row has {described(row)}"
                )
        if len(names) > 1:
            texts = [_in_line(value) for value in values if not is_missing(value)]
            renamed[own] = "\n".join(text for text in texts if text) or None
        elif values:
            renamed[own] = values[0]
    return renamed


def _in_line(value: object) -> str:
    """Return the value of one of several columns as text; a list is its entries with commas, as choices are."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value).strip()


def missing_column(
    what: str, names: Sequence[str], row: Row, columns: ColumnNames = MappingProxyType({})
) -> str:
    """Return a message: none of the columns `names` has a value in the row; it names those that are there, and which is meant.

    Args:
        what: The part of a row that is missing.
        names: Our names of the columns.
        row: The row of the file.
        columns: `data.columns`.
    """
    if name := columns.get(names[0]):
        shown = repr(name) if isinstance(name, str) else " and ".join(map(repr, name))
        return (
            f"no {what}: {shown}, which data.columns.{names[0]} names, has no value; found {described(row)}"
        )
    others = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
    message = f"no {what}: no column {names[0]!r}{others} with a value; found {described(row)}"
    if meant := meant_column(names[0], row):
        message += f'. If {meant!r} is meant, say data.columns = {{{names[0]} = "{meant}"}}'
    return message


def described(row: Row) -> str:
    """Return the names of a row's columns for a message, with those that hold null marked."""
    shown = ", ".join(f"{name} (null)" if is_missing(value) else f"{name}" for name, value in row.items())
    return shown[:_MAX_SHOWN] or "none"


def meant_column(own: str, row: Row) -> str | None:
    """Return the column of a row that most likely means our column `own`."""
    by_folded: dict[str, str] = {
        name.casefold(): name for name, value in reversed(list(row.items())) if not is_missing(value)
    }
    for name in (own, *_MEANT.get(own, ())):
        if name in by_folded:
            return by_folded[name]
    close = difflib.get_close_matches(own, by_folded, 1, 0.75)
    return by_folded[close[0]] if close else None


def is_verl(row: Row) -> bool:
    """Return True if a row is in the verl style."""
    return not is_missing(row.get("reward_model")) and is_missing(row.get("answer"))


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verl row as {"prompt", "answer", free columns}; the fields of extra_info become free columns.

    Raises:
        ValueError: `reward_model` or `extra_info` is not a record, nor the JSON text of one.
    """
    reward_model = _record(row, "reward_model")
    extra_info = _record(row, "extra_info")
    plain = {key: row[key] for key in row if key not in ("reward_model", "extra_info")}
    if "prompt" not in plain and "question" in plain:
        plain["prompt"] = plain.pop("question")
    # extra_info may contain a "prompt", an "answer" or an "id"; they must not replace our columns.
    free = {key: value for key, value in extra_info.items() if key not in ("prompt", "answer", "id")}
    return {**free, **plain, "answer": reward_model.get("ground_truth")}


def _record(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = as_record(row.get(key))
    if is_missing(value):
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key!r} must be a record, got {type(value).__name__}")
    return value


_COLUMNS = ("choices", "options", "answer_choices", "endings")
_LETTERS = "ABCDEFGHIJ"
_TEXTS, _LABELS = ("text", "texts", "value", "content"), ("label", "labels", "key", "id")
"""Fields of a record that is all choices, or one of them, as in ARC and MedQA."""
_LABEL = re.compile(r"\W*(?P<label>[A-Za-z]|\d{1,2})\W*")


def require_shown(row: Row, messages: Sequence[Message], golds: Sequence[str]) -> None:
    """Require that a prompt shows the row's choices if a gold is the letter or the number of one.

    Raises:
        RowError: It does not; names the column.
    """
    named = _choices(row)
    if named is None:
        return
    column, choices, labels = named
    wanted = {match["label"].upper() for gold in golds if (match := _LABEL.fullmatch(gold))}
    prompt = "\n".join(message.text for message in messages)
    if wanted.isdisjoint(labels) or all(choice.strip() in prompt for choice in choices):
        return
    raise RowError(
        f"the gold is a letter or a number of {column}, which the prompt does not show. "
        "Write the choices into the prompt, or name another column of the answer with data.columns"
    )


def _choices(row: Row) -> tuple[str, tuple[str, ...], set[str]] | None:
    """Return the column of a row's choices as messages name it, their texts, and their letters and numbers; None without any."""
    field = find_field(row, _COLUMNS)
    if field is not None:
        texts, labels = _read(field[1])
        column = repr(field[0])
    else:
        letters = [letter for letter in _LETTERS if isinstance(row.get(letter), str)]
        texts, labels = tuple(row[letter] for letter in letters), set(letters)
        column = ", ".join(map(repr, letters))
    if len(texts) < 2:
        return None
    return column, texts, labels | {*_LETTERS[: len(texts)], *map(str, range(len(texts)))}


def _read(value: object) -> tuple[tuple[str, ...], set[str]]:
    """Return the texts and labels of choices: a list of texts or of records, a record of lists, or texts by their letters."""
    value = as_record(value)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = parse_json(value)
        except ValueError:
            return (), set()
    if isinstance(value, dict):
        texts, labels = _named(value, _TEXTS), _named(value, _LABELS)
        if isinstance(texts, list):
            return tuple(_plain(texts)), {label.upper() for label in _plain(labels)}
        return tuple(_plain(list(value.values()))), {str(key).upper() for key in value}
    if not isinstance(value, list):
        return (), set()
    records = [each for each in value if isinstance(each, dict)]
    if not records:
        return tuple(_plain(value)), set()
    labels = [_named(each, _LABELS) for each in records]
    return tuple(_plain([_named(each, _TEXTS) for each in records])), {x.upper() for x in _plain(labels)}


def _named(record: dict[str, object], names: Sequence[str]) -> object:
    return next((record[name] for name in names if name in record), None)


def _plain(values: object) -> Iterator[str]:
    if isinstance(values, list):
        yield from (
            str(value) for value in values if isinstance(value, str | int | float) and str(value).strip()
        )
