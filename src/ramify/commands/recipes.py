"""`ramify recipes`: the shipped recipes with their papers, models, hardware and data; `ramify recipes NAME` prints one."""

import argparse
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ramify.commands.parser import add_output, open_console
from ramify.config import shipped_recipes
from ramify.core.errors import ConfigError

_SCHEMA = 1
"""Version of the JSON object."""
_WIDEST = 60
_PAPER = re.compile(r"(?:\b([A-Z][\w.+-]*(?: [\w.+-]+)?) \((?:[^()]*, )?)?arXiv (\d{4}\.\d{5})")
_CPU = re.compile(r"\bFor a (CPU(?: and services)?)")
_GPUS = re.compile(r"\b(one|\d+) GPUs? of (\d+) GB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this recipe, to be copied and changed")
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        ConfigError: There is no such recipe; names those with a name like it.
    """
    recipes = {path.stem: path for path in sorted(shipped_recipes().glob("*.toml"))}
    console = open_console(options)
    if options.name is None:
        rows = [_row(path) for path in recipes.values()]
        console.record({"schema": _SCHEMA, "recipes": rows})
        console.table(
            ("name", "command", "paper", "hardware", "model", "data"),
            [tuple((value or "")[:_WIDEST] for value in row.values()) for row in rows],
        )
        return
    name = options.name.removesuffix(".toml")
    if name not in recipes:
        alike = [other for other in recipes if name in other] or get_close_matches(name, recipes, 5, 0.5)
        near = f" Near it: {', '.join(alike)}." if alike else ""
        raise ConfigError(f"{options.name}: no shipped recipe.{near} ramify recipes lists all.")
    text = recipes[name].read_text(encoding="utf-8")
    console.record({"schema": _SCHEMA, **_row(recipes[name]), "text": text})
    console.result(text.rstrip())


def _row(path: Path) -> dict[str, str | None]:
    """Return what a recipe is for: its tables, and the comment at its head, which names the paper and the machine."""
    from ramify.config.load import command_of

    text = path.read_text(encoding="utf-8")
    table = tomllib.loads(text)
    head = " ".join(line.lstrip("# ") for line in text.partition("\n[")[0].splitlines())
    paper, gpus = _PAPER.search(head), _GPUS.search(head)
    model, data = _section(table, "model"), _section(table, "data")
    cpu = _CPU.search(head)
    hardware = cpu[1] if cpu is not None else "CPU" if model.get("device") == "cpu" else None
    if gpus is not None:
        hardware = f"{gpus[1].replace('one', '1')} x {gpus[2]} GB"
    files = data.get("train", data.get("test"))
    return {
        "name": path.stem,
        "command": command_of(table),
        "paper": None if paper is None else " ".join(filter(None, paper.groups())),
        "hardware": hardware,
        "model": model.get("path"),
        "data": ", ".join(map(str, files)) if isinstance(files, list) else files,
    }


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = table.get(name)
    return section if isinstance(section, Mapping) else {}
