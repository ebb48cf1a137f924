"""Describes the mistakes of a recipe in a user's words, and suggests what an unknown key was meant to be, in ramify or in another trainer.

The names of other trainers are one table, which docs/coming-from*.md are written from too.
"""

import difflib
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ramify.core.config import Config, in_words

_ALL, _OTHERS = ".**", ".*"
"""End a name that stands for all keys of a table, or for those whose last parts have no row."""
_MOST_PARTS = 8
"""No name has more parts."""


@dataclass(frozen=True, slots=True)
class OtherName:
    """A setting of another trainer.

    Attributes:
        theirs: Its names there.
        ours: The keys of a recipe that it becomes; empty if there is none.
        note: A sentence on what else differs, or on why there is no such key; "" if nothing does.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class ReleasedPart:
    """A script, file or table of a paper's release.

    Attributes:
        theirs: What it is.
        ours: The command, keys or page that does it here.
        state: Equal, better, different, or not here.
        why: What differs; "" if nothing does.
    """

    theirs: str
    ours: str
    state: Literal["equal", "better", "different", "not here"]
    why: str


@dataclass(frozen=True, slots=True)
class Trainer:
    """Another trainer: its name, the text in front of its tables, the settings, and the parts of a paper's release."""

    title: str
    intro: str
    rows: tuple[OtherName, ...]
    release: tuple[ReleasedPart, ...] = ()


@cache
def trainers() -> Mapping[str, Trainer]:
    """Return the trainers by the name of their page."""
    text = Path(__file__).with_name("names_of_others.toml").read_text(encoding="utf-8")
    return {
        name: Trainer(
            table["title"],
            table["intro"].strip(),
            tuple(_row(*cells) for cells in table["rows"]),
            tuple(ReleasedPart(*cells) for cells in table.get("release", ())),
        )
        for name, table in tomllib.loads(text).items()
    }


def _row(theirs: str, ours: str, note: str) -> OtherName:
    return OtherName(tuple(theirs.split(", ")), tuple(ours.split(", ")) if ours else (), note)


@cache
def _rows_by_name() -> Mapping[str, Sequence[OtherName]]:
    """Return rows by each of their names, and by the last parts of a dotted name (two or more)."""
    rows: dict[str, list[OtherName]] = defaultdict(list)
    for row in (row for trainer in trainers().values() for row in trainer.rows):
        for name in row.theirs:
            rows[name].append(row)
            parts = [] if name.endswith((_ALL, _OTHERS)) else name.split(".")
            for start in range(1, len(parts) - 1):
                rows[".".join(parts[start:])].append(row)
    return rows


def counterpart(path: Sequence[str], keys: Collection[str], *, single_words: bool = True) -> OtherName | None:
    """Return the row for an unknown key: by its whole name or its table, else by its last parts.

    Args:
        path: Names of the tables and, last, of the key.
        keys: The dotted keys that the recipe can have. Of several rows the first whose keys are among them is returned, else the
            first. A key that this recipe or another one can have has no row.
        single_words: Also look for the last name alone.
    """
    key = ".".join(path)
    if key in keys:
        return None
    parts = [name.lower() for name in path]
    longest, shortest = min(len(parts), _MOST_PARTS), 1 if single_words else 2
    names = [".".join(parts[-length:]) for length in range(longest, shortest - 1, -1)]
    for name in [".".join(parts[-_MOST_PARTS:]), parts[0] + _ALL, *names, parts[0] + _OTHERS]:
        if rows := [row for row in _rows_by_name().get(name, ()) if key not in row.ours]:
            return next((row for row in rows if keys_exist(row, keys)), rows[0])
    return None


def keys_exist(row: OtherName, keys: Collection[str]) -> bool:
    """Return True if a recipe with these keys can have what the row says."""
    return all(key in keys for key in row.ours)


Schema: TypeAlias = type[BaseModel] | type[Config]
"""The schema of a table: a section, or the settings that a component owns."""
Schemas: TypeAlias = Sequence[Schema]

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
FORM_KEYS = ("name", "provider", "type")
"""Keys whose value selects one of several schemas (forms) of a table."""
_MOST_NAMESAKES = 3
"""A name that more tables have is no hint."""


def mistakes_in(schema: Schema, error: ValidationError) -> list[str]:
    """Return one line for each wrong key: unknown keys first, then in the order of the schema."""
    lines_by_key: dict[str, list[str]] = {}
    meant: set[str] = set()
    keys = frozenset(dotted_keys(schema))
    items = error.errors()
    # A misspelt required key is both unknown and missing. Only the first is reported, with a suggestion.
    for item in sorted(items, key=lambda item: item["type"] not in _UNKNOWN):
        if _is_explained(item, items):
            continue
        names, schemas = locate((schema,), item["loc"])
        key = ".".join(names) or "recipe"
        if item["type"] in _UNKNOWN:
            for hint in _hints(keys, locate((schema,), item["loc"][:-1])[1], names, item["input"]):
                lines_by_key.setdefault(hint.key, [f"{hint.key}: {hint.reason}"])
                meant |= {*hint.meant}
            continue
        if item["type"] == "missing" and key in meant:
            continue
        # If a value fits none of several types, pydantic reports a mistake for each type; the first is enough.
        if not any(key == other or key.startswith(f"{other}.") for other in lines_by_key):
            lines_by_key[key] = _described(schemas, names, item)
    return [line for lines in lines_by_key.values() for line in lines]


def _is_explained(mistake: ErrorDetails, items: Sequence[ErrorDetails]) -> bool:
    """Return True for a list where one value is expected, if a list is expected too and another mistake says what is wrong with it."""
    value = mistake["input"]
    if not (isinstance(value, list) and mistake["type"].endswith("_type")):
        return False
    parts = [value, *value]
    return any(other is not mistake and any(other["input"] is part for part in parts) for other in items)


def _described(schemas: Schemas, path: Sequence[str], mistake: ErrorDetails) -> list[str]:
    if mistake["type"].startswith("union_tag"):
        names = ", ".join(name for s in schemas for name in form_of(s)[1])
        form_key = form_of(schemas[0])[0]
        actual = (
            f"got {mistake['input'][form_key]!r}" if mistake["type"] == "union_tag_invalid" else "found none"
        )
        return [f"{'.'.join(path) or 'recipe'}.{form_key}: expected one of {names}, {actual}"]
    return in_words(".".join(path), mistake)


def locate(schemas: Schemas, loc: Sequence[int | str]) -> tuple[list[str], Schemas]:
    """Return the key as a user writes it for pydantic's location, and the possible schemas there.

    For a table with several forms, pydantic's location contains the form's name as well.
    """
    key: list[str] = []
    is_named = False
    for part in loc:
        if is_named:
            # The user's own name of a table, such as "game" in [environments.game], which may be that of a form too.
            key.append(str(part))
            is_named = False
            continue
        form = [schema for schema in schemas if len(schemas) > 1 and part in form_of(schema)[1]]
        if form:
            schemas = form
            continue
        if key and not schemas and isinstance(part, str):
            # For a key with several types, pydantic's location ends with the type's name.
            continue
        key.append(str(part))
        if isinstance(part, int):
            continue
        annotations = [annotations_of(schema).get(part) for schema in schemas]
        schemas = [option for annotation in annotations for option in schemas_in(annotation)]
        is_named = bool(schemas) and any(map(_holds_names, annotations))
    return key, schemas


def _holds_names(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Return True for a table whose keys are names of the user's own."""
    return get_origin(annotation) is dict or any(map(_holds_names, get_args(annotation)))


def form_of(schema: Schema) -> tuple[str, tuple[str, ...]]:
    """Return the key that selects the form of a table, and its values for this form."""
    for key in FORM_KEYS:
        annotation = annotations_of(schema).get(key)
        if get_origin(annotation) is Literal:
            return key, get_args(annotation)
    return FORM_KEYS[0], ()


@dataclass(frozen=True, slots=True)
class _Hint:
    """The reason why a key is unknown, and the keys, dotted, that may have been meant."""

    key: str
    reason: str
    meant: Sequence[str] = ()


def _hints(keys: Collection[str], table: Schemas, path: Sequence[str], value: object) -> Iterator[_Hint]:
    """Yield the hint for an unknown key, or one for each key in an unknown table of another trainer.

    Args:
        keys: All dotted keys of the recipe.
        table: The possible schemas of the table with the unknown key.
        path: Names of the tables and, last, of the unknown key.
        value: Its value.
    """
    near = _near_keys(keys, table, path)
    leaves = list(_leaves(path, value))
    # A misspelt table of ours may have keys with other trainers' names: those decide only if no table of ours is near.
    single_words = leaves == [path] or not near
    if not any(counterpart(leaf, keys, single_words=single_words) for leaf in leaves):
        if near or leaves == [path]:
            yield _Hint(".".join(path), _unknown(path, near, " or "), near)
            return
        # A table of another kind of recipe.
        for leaf in leaves:
            meant = _near_keys(keys, (), leaf)
            yield _Hint(".".join(leaf), _unknown(leaf, meant, " or "), meant)
        return
    for leaf in leaves:
        row = counterpart(leaf, keys)
        if row is None:
            yield _Hint(".".join(leaf), "unknown key")
        elif not keys_exist(row, keys):
            yield _Hint(".".join(leaf), f"unknown key. In other recipes it is {_listed(row.ours, ' and ')}.")
        else:
            yield _Hint(".".join(leaf), _unknown(leaf, row.ours, " and ", row.note), row.ours)


def _unknown(path: Sequence[str], meant: Sequence[str], last: str, note: str = "") -> str:
    """Return what is wrong with a key; keys of the same table are shown without the table."""
    table = ".".join(path[:-1])
    is_beside = all(key.rpartition(".")[0] == table for key in meant)
    names = [key.rpartition(".")[2] for key in meant] if is_beside else meant
    reason = f"unknown key, did you mean {_listed(names, last)}?" if names else "unknown key"
    separator = " " if names else ". "
    return f"{reason}{separator}{note}" if note else reason


def _listed(names: Sequence[str], last: str) -> str:
    return last.join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _leaves(path: Sequence[str], value: object) -> Iterator[Sequence[str]]:
    """Yield the paths of the values in a table, or the path of what is none."""
    # A table may be nested deeper than Python's stack.
    tables = [(path, value)]
    while tables:
        path, value = tables.pop()
        if isinstance(value, dict) and value:
            tables += [([*path, str(name)], below) for name, below in reversed(value.items())]
        else:
            yield path


def _near_keys(keys: Collection[str], table: Schemas, path: Sequence[str]) -> Sequence[str]:
    """Return the keys, dotted, that are closest to an unknown one: of the same name elsewhere, else of a similar one in the same table.

    Args:
        keys: All dotted keys of the recipe.
        table: The possible schemas of the table with the unknown key.
        path: Names of the tables and, last, of the unknown key.
    """
    known = [key for schema in table for key in annotations_of(schema)]
    near = [".".join([*path[:-1], name]) for name in difflib.get_close_matches(path[-1], known, n=1)]
    namesakes = {key for key in keys if key.rpartition(".")[2] == path[-1]} - {".".join(path)}
    # Keys below the user's table come first, then those of the outermost tables. [environments.NAME] has the keys of [environment].
    inside = ".".join([*path[:-1], ""])
    below = {key for key in namesakes if key.startswith(inside)}
    # Another form of the table has tables that this one lacks.
    absent = {key for key in below if key[len(inside) :].partition(".")[0] not in known}
    namesakes, below = namesakes - absent, below - absent
    others = (below if path[:-1] and below else namesakes) - {
        k for k in namesakes if k.startswith("environments.")
    }
    depth = min((key.count(".") for key in others), default=0)
    nearest = sorted(key for key in others if key.count(".") == depth)
    return nearest if 1 <= len(nearest) <= _MOST_NAMESAKES else near


def dotted_keys(schema: Schema, prefix: str = "") -> Iterator[str]:
    """Yield the keys of a recipe, of all forms of its tables, each with its tables in front."""
    for name, annotation in annotations_of(schema).items():
        yield f"{prefix}{name}"
        for below in schemas_in(annotation):
            yield from dotted_keys(below, f"{prefix}{name}.")


def schemas_in(annotation: Any) -> list[Schema]:  # noqa: ANN401 - any annotation
    """Return the schemas of tables in a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Config):
        return [annotation]
    return [schema for option in get_args(annotation) for schema in schemas_in(option)]


def annotations_of(schema: Schema) -> dict[str, Any]:
    """Return the types of a table's keys."""
    if issubclass(schema, BaseModel):
        return {name: field.annotation for name, field in schema.model_fields.items()}
    return {field.name: field.type for field in fields(schema)}
