"""`ramify runs [DIR]`: the runs below a folder; `ramify runs compare A B`: what differs between two runs."""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.parser import add_output, open_console
from ramify.core.errors import DataError

if TYPE_CHECKING:
    from ramify.commands.run_listing import RunRow
    from ramify.eval.compare import Comparison
    from ramify.obs.console import RunConsole
    from ramify.runs.manifest import Difference

_COMPARED = frozenset({"eval", "train", "sft", "dpo"})
_METRICS = (
    "reward/mean",
    "reward/leaf_mean",
    "loss",
    "health/written",
    "calls/per_trajectory",
    "branch/rate",
)
"""Metrics of training in the text; the JSON object has all."""
_NOT_COMPARED = frozenset({"log", "name", "schema", "made_with", "notes"})
_MOST_FLIPS = 10
"""Flipped problems in the text; the JSON object has all."""
_LONGEST_REASON = 120
"""Characters of a reason in the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "words",
        nargs="*",
        type=Path,
        metavar="DIR | compare A B",
        help="the folder whose runs are listed (runs); or compare, and the folders of two evaluations or two training runs",
    )
    parser.add_argument("--metric", metavar="NAME", help="with compare: a part of the reward (correct)")
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        DataError: There is no such folder, or the two runs cannot be compared.
    """
    words: list[Path] = options.words
    if words[:1] == [Path("compare")] and (len(words) > 1 or not words[0].is_dir()):
        _compare(options, words[1:])
    elif options.metric is not None:
        raise DataError("--metric: belongs to ramify runs compare. Remove it.")
    elif len(words) > 1:
        raise DataError(f"expected one folder, got {len(words)}. To compare: ramify runs compare A B.")
    else:
        _list(options, words[0] if words else Path("runs"))


def _list(options: argparse.Namespace, root: Path) -> None:
    from ramify.commands.run_listing import SCHEMA, list_runs

    if not root.is_dir():
        raise DataError(f"{root}: no such folder. Name one: ramify runs DIR.")
    if not os.access(root, os.R_OK | os.X_OK):
        raise DataError(f"{root}: may not be read. Change its permissions, or name another folder.")
    console = open_console(options)
    rows = list_runs(root)
    console.record({"schema": SCHEMA, "runs": [asdict(row) for row in rows]})
    if not rows:
        console.result(f"no runs in {root}")
        return
    now = time.time()
    header = ("run", "kind", "state", "step", "best score", "age", "model")
    console.table(header, [_cells(row, root, now) for row in rows])


def _cells(row: "RunRow", root: Path, now: float) -> tuple[str, ...]:
    score = ""
    if row.score is not None:
        at = "" if row.score.step is None or row.score.step == row.step else f" at {row.score.step}"
        score = f"{row.score.name} {row.score.value:.4g}{at}"
    step = "" if row.step is None else f"{row.step}/{'?' if row.steps is None else row.steps}"
    folder = Path(row.dir)
    name = str(folder.relative_to(root)) if folder != root else str(root)
    reason = f"{row.model}  ({row.reason[:_LONGEST_REASON]})" if row.reason else row.model
    age = "" if row.updated is None else _age(now - row.updated)
    return name, row.kind, row.state, step, score, age, reason.strip()


def _compare(options: argparse.Namespace, folders: Sequence[Path]) -> None:
    from ramify.commands.run_listing import SCHEMA
    from ramify.eval.compare import compare_evaluations, compare_trainings
    from ramify.runs.manifest import shown

    rows = _comparable(folders)
    kind = rows[0].kind
    if kind == "eval":
        comparison = compare_evaluations(folders[0], folders[1], options.metric or "correct")
    elif options.metric is not None:
        raise DataError("--metric: belongs to evaluations. Remove it.")
    else:
        comparison = compare_trainings(folders[0], folders[1])
    console = open_console(options)
    different = _differences(folders[0], folders[1])
    warnings = list(comparison.warnings)
    if kind != "eval" and any(each.key.startswith("made_from.data") for each in different):
        warnings.append("the two were trained on different data")
    console.record(
        {
            "schema": SCHEMA,
            "kind": kind,
            "runs": [row.dir for row in rows],
            **asdict(comparison),
            "different": [{"key": each.key, "first": each.before, "second": each.now} for each in different],
            "warnings": warnings,
        }
    )
    _show(console, [row.dir for row in rows], comparison)
    for warning in warnings:
        console.result(f"warning: {warning}")
    if different:
        console.result("")
        console.table(
            ("differs", "first", "second"),
            [(each.key, _short(shown(each.before), 40), _short(shown(each.now), 40)) for each in different],
        )


def _comparable(folders: Sequence[Path]) -> "list[RunRow]":
    from ramify.commands.run_listing import describe_run

    if len(folders) != 2:
        raise DataError(f"compare: expected two folders, got {len(folders)}. Name the folders of two runs.")
    if folders[0].resolve() == folders[1].resolve():
        raise DataError(f"{folders[1]}: the same run twice. Compare two runs.")
    rows = [describe_run(folder) for folder in folders]
    for row in rows:
        if row.state in ("damaged", "not begun"):
            raise DataError(f"{row.dir}: {row.reason or 'no run has begun there'}")
    first, second = rows
    if (first.kind == "eval") != (second.kind == "eval") or not {first.kind, second.kind} <= _COMPARED:
        raise DataError(
            f"{first.dir} is of ramify {first.kind}, {second.dir} of ramify {second.kind}. Compare two evaluations or two "
            "training runs."
        )
    return rows


def _differences(first: Path, second: Path) -> "list[Difference]":
    """Return the keys in which the recipes differ and what the runs are made from, without the run's own folder and loggers."""
    from ramify.commands.run_listing import read_recipe
    from ramify.core.json_types import part
    from ramify.files.durable import read_record
    from ramify.runs.manifest import MANIFEST, differences

    def tables(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        manifest = folder / MANIFEST
        made_from = read_record(manifest, part()) if manifest.exists() else {}
        return read_recipe(folder), made_from.get("scores", made_from)

    by_key: dict[str, Difference] = {}
    for before, after in zip(tables(first), tables(second), strict=True):
        for each in differences(before, after):
            if each.key != "run.dir" and each.key.partition(".")[0] not in _NOT_COMPARED:
                by_key.setdefault(each.key, each)
    return list(by_key.values())


def _show(console: "RunConsole", names: Sequence[str], comparison: "Comparison") -> None:
    from ramify.eval.compare import difference_line, score_line

    for name, score in zip(names, comparison.scores, strict=False):
        console.result(score_line(name, comparison.metric, score))
    if comparison.difference is None:
        console.result("no problem can be compared")
    else:
        console.result(difference_line(names[0], names[1], comparison.difference))
    metrics = comparison.metrics or {}
    if rows := [(name, *(f"{value:.4g}" for value in metrics[name])) for name in _METRICS if name in metrics]:
        console.result("")
        console.table((f"at step {comparison.step}", "first", "second"), rows)
    if comparison.flips:
        better = sum(flip.is_better for flip in comparison.flips)
        console.result("")
        console.result(
            f"flipped problems: {better} right in the second only, {len(comparison.flips) - better} in the first only"
        )
        chosen = (
            *comparison.flips[: _MOST_FLIPS // 2],
            *comparison.flips[better : better + _MOST_FLIPS // 2],
        )
        console.table(
            ("problem", "right", "gold", "first", "second", "question"),
            [
                (
                    flip.problem,
                    f"{flip.right[0]:.0%} to {flip.right[1]:.0%}",
                    _short(" | ".join(flip.golds), 24),
                    _short(flip.answers[0], 24),
                    _short(flip.answers[1], 24),
                    _short(flip.question, 60),
                )
                for flip in dict.fromkeys(chosen)
            ],
        )


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
