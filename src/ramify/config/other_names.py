"""Names of settings in other trainers, and ramify's: one table for hints about unknown keys and for docs/coming-from*.md."""

import tomllib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

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
