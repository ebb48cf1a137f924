"""Questions with choices whose gold is the letter or the number of one: the prompt must show them."""

import re
from collections.abc import Iterator, Sequence

from ramify.core.errors import RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import Message
from ramify.data.row_columns import Row, as_record, find_field

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
