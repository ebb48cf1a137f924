"""Writes docs/coming-from*.md and docs/from-*.md from the table of other trainers' names; a test compares the two."""

import sys
from pathlib import Path

from ramify.config.mistakes import Trainer, trainers

DOCS = Path(__file__).resolve().parents[1] / "docs"
INDEX = "others"
"""The trainer whose page is the index of the others."""
LEGEND = """\
A key of ours is written with its tables: `rollout.n` is `n` in `[rollout]`, or `-s rollout.n=16`. Without one there is no such
setting, and the note says why. `critic.**` stands for all keys of a table, `trainer.*` for those that are in no other row.
[Keys of recipes](reference/recipe-keys.md) lists all of ours."""


def page_name(name: str) -> str:
    """Return the file of a trainer's page; those of the papers' releases have a name of their own."""
    if name == INDEX:
        return "coming-from.md"
    kind = "from" if trainers()[name].release else "coming-from"
    return f"{kind}-{name.replace('_', '-')}.md"


def page(trainer: Trainer) -> str:
    """Return the text of a trainer's page."""
    lines = ["| theirs | ours | note |", "| --- | --- | --- |"]
    lines += [
        f"| {_code(row.theirs)} | {_code(row.ours) or '-'} | {row.note}".rstrip() + " |"
        for row in trainer.rows
    ]
    release = ["| release | here | state | what differs |", "| --- | --- | --- | --- |"]
    release += [
        f"| {part.theirs} | {part.ours} | {part.state} | {part.why}".rstrip() + " |"
        for part in trainer.release
    ]
    parts = ["\n".join(release), "## Settings"] if trainer.release else []
    note = "<!-- Written by scripts/write_coming_from.py from src/ramify/config/names_of_others.toml. -->"
    return "\n\n".join(
        [f"# Coming from {trainer.title}", note, trainer.intro, *parts, LEGEND, "\n".join(lines) + "\n"]
    )


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> int:
    """Write all pages."""
    for name, trainer in trainers().items():
        (DOCS / page_name(name)).write_text(page(trainer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
