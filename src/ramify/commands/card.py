"""`ramify card RUN`: what a run was made from and what it scored, as one JSON object to send to others."""

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError

_CARD = 1
"""Version of the object."""
_SCORES = (
    "model",
    "num_problems",
    "attempts",
    "pass_at",
    "mean_at",
    "majority_at",
    "parts",
    "groups",
    "judge",
    "null",
    "notes",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "folder", type=Path, metavar="RUN", help="the folder of a finished evaluation, or of a training run"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        DataError: The folder is of no run, its evaluation is not finished, or a file cannot be read.
    """
    from ramify.obs.console import RunConsole

    # In ASCII, since the console's own escapes of what does not print are not JSON.
    RunConsole().result(json.dumps(_card(options.folder), indent=2))


def _card(folder: Path) -> dict[str, Any]:
    from ramify import __version__
    from ramify.core.json_types import part
    from ramify.files.durable import RECIPE, read_record
    from ramify.files.untrusted import read_small_file
    from ramify.runs.manifest import MANIFEST, read_manifest

    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: no run. Expected a folder with {MANIFEST}.")
    if not (folder / RECIPE).is_file() and (folder / "verdicts.jsonl").is_file():
        raise DataError(
            f"{folder}: holds a judge's verdicts, and is no run. Name the evaluation that ramify judge judged; a file of results has "
            "no card, and its figures are in summary.json."
        )
    manifest = read_manifest(folder)
    try:
        recipe = tomllib.loads(read_small_file(folder / RECIPE).decode())
    except ValueError as error:
        raise DataError(f"{folder / RECIPE}: {error}") from None
    card: dict[str, Any] = {
        "card": _CARD,
        "ramify": __version__,
        "recipe": recipe,
        "made_from": manifest.get("scores", manifest.get("made_from")),
        "made_with": manifest["made_with"],
    }
    if "scores" in manifest:
        if not (folder / "summary.json").is_file():
            raise DataError(f"{folder}: the evaluation is not finished. Finish it with ramify eval --resume.")
        summary = read_record(folder / "summary.json", part())
        return card | {"scores": {key: summary[key] for key in _SCORES if key in summary}}
    return card | {"evaluations": _evaluations(folder)}


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    from ramify.obs.metrics import read_metrics

    path = folder / "evals.jsonl"
    return [dict(row) for row in read_metrics(path)] if path.is_file() else []
