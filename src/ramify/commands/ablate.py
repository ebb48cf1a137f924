"""`ramify ablate RECIPE`: does branching, and where it happens, help on this task; flat, yoked and the recipe's rule at equal cost."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import (
    add_dry_run,
    add_output,
    add_override,
    at_least_one,
    notes_of,
    open_console,
    recipe_file,
)
from ramify.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ramify.obs.console import RunConsole
    from ramify.obs.page import Table
    from ramify.study.arms import Ablation, PlannedRun
    from ramify.study.contrasts import AblationResult
    from ramify.study.lines import RunLine

_ARMS = ("flat", "yoked", "rule")
_SEEDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "recipe",
        type=recipe_file,
        metavar="RECIPE.toml",
        help="a recipe of ramify train with [eval], or its name; or the folder or the results.jsonl of an ablation, which is shown and "
        "trains nothing",
    )
    add_override(parser)
    parser.add_argument(
        "--arms",
        type=_arms,
        metavar="NAMES",
        help="some of flat (no branching), yoked (as many branches as the rule, at results drawn by chance) and rule (the recipe's own); "
        "flat,yoked,rule. Of finished runs: the arms to compare (all)",
    )
    parser.add_argument(
        "--arm",
        dest="others",
        action="append",
        type=_other_arm,
        default=[],
        metavar="NAME={RULE}",
        help="a further arm by its rollout.branching, such as aepo='{name=\"balanced\"}'; may be repeated",
    )
    parser.add_argument("--seeds", type=at_least_one, metavar="N", help="seeds from run.seed on (3)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the ablation (runs/ablate-NAME)")
    parser.add_argument(
        "--jobs", type=at_least_one, metavar="N", help="runs at once (processor cores; on a GPU 1)"
    )
    add_dry_run(parser, "check the recipe in every arm; list the runs, and what one needs of this machine")
    parser.add_argument(
        "--blind",
        action="store_true",
        help="show the spread of the pairs and how many pairs are needed, not which arm is better; no page is written",
    )
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe cannot be compared, or the folder holds another ablation.
        TrainingError: A run failed.
        RunInterruptedError: Ctrl-C or SIGTERM; the same command goes on.
    """
    from ramify.commands.check_files import require_dry_run
    from ramify.study.ablation_folder import is_ablation, refuse_other_ablation

    require_dry_run(options)
    if options.recipe.suffix == ".jsonl" or is_ablation(options.recipe):
        _show_lines(options)
        return
    from ramify.files.durable import locked_folder, make_folder
    from ramify.study.arms import plan_ablation
    from ramify.study.lines import RESULTS, read_lines

    out: Path = options.out or Path("runs", f"ablate-{options.recipe.stem}")
    others = _by_name(options.others)
    arms = options.arms or _ARMS
    if wrong := [name for name in arms if name not in _ARMS]:
        raise ConfigError(
            f"--arms: expected some of {', '.join(_ARMS)}, got {wrong[0][:40]!r}. Add others with --arm."
        )
    ablation = plan_ablation(options.recipe, options.overrides, arms, others, options.seeds or _SEEDS, out)
    if options.dry_run:
        lines = read_lines(out / RESULTS)
        by_name = {line.name: line for line in lines}
        refuse_other_ablation(ablation, by_name, out)
        left = _left(ablation, by_name, out)
        _list(options, ablation, lines, _checked(options, left, fetch=False))
        return
    from ramify.study.contrasts import compare_arms

    make_folder("--out", out)
    with locked_folder("--out", out):
        trained = _train(options, ablation, out)
        planned = {run.name for run in ablation.runs}
        console = open_console(options)
        if others_there := [line.name for line in trained if line.name not in planned]:
            console.note(
                f"{out} also has {len(others_there)} finished runs that this command did not ask for, such as {others_there[0]}: "
                f"they are left out here. ramify ablate {out} shows all"
            )
        result = compare_arms([line for line in trained if line.name in planned], ablation.arms)
        _write(console, result, out, out / RESULTS, blind=options.blind)


def _train(options: argparse.Namespace, ablation: "Ablation", out: Path) -> "Sequence[RunLine]":
    """Train what is not finished yet; returns the lines of all runs in the folder."""
    from ramify.commands.input_checksums import input_checksums
    from ramify.study.ablation_folder import note_ablation, refuse_other_ablation, refuse_other_inputs
    from ramify.study.arms import YOKED
    from ramify.study.lines import RESULTS, STARTS, line_of, read_lines, write_lines
    from ramify.study.processes import Launch, read_starts, train_runs

    lines = {line.name: line for line in read_lines(out / RESULTS)}
    refuse_other_ablation(ablation, lines, out)
    left = _left(ablation, lines, out)
    _checked(options, left, fetch=True)
    known: dict[Path, str] = {}
    inputs = {run.name: input_checksums(run.recipe, known) for run in ablation.runs}
    refuse_other_inputs(inputs, lines, out)
    note_ablation(ablation, out)

    def record(run: "PlannedRun") -> None:
        pair = out / run.after if run.arm == YOKED else None
        starts = read_starts(out / STARTS).get(run.name, ())
        lines[run.name] = line_of(run, ablation.fingerprint, inputs[run.name], pair, starts)
        write_lines(out / RESULTS, list(lines.values()))

    done = [run.name for run in ablation.runs if run not in left]
    launch = Launch(options.recipe, out / "logs", out / STARTS, options.jobs or _jobs(ablation))
    if left:
        train_runs(left, done, launch, open_console(options), record)
    return list(lines.values())


def _left(ablation: "Ablation", lines: "Mapping[str, RunLine]", out: Path) -> "list[PlannedRun]":
    """Return the runs to train: those without a line, and those whose trees they need and which only have a line."""
    from ramify.study.lines import has_trees

    names = {run.name for run in ablation.runs if run.name not in lines}
    while True:
        pairs = {run.after for run in ablation.runs if run.name in names and run.after in lines}
        more = {name for name in pairs - names if not has_trees(out / name, lines[name])}
        if not more:
            return [run for run in ablation.runs if run.name in names]
        names |= more


def _checked(options: argparse.Namespace, runs: "Sequence[PlannedRun]", *, fetch: bool) -> list[str]:
    """Refuse what any run would refuse before the first one starts; returns what one asks for, in lines."""
    from ramify.commands.check_files import check_files, dry_run_notes

    recipes = [run.recipe for run in runs if not run.after]
    for recipe in recipes:
        check_files(recipe, fetch=fetch, note=notes_of(options))
    # They have the same data.
    return dry_run_notes(recipes[0], rows=options.rows) if recipes else []


def _jobs(ablation: "Ablation") -> int:
    from ramify.commands.memory import device_of

    if device_of(ablation.recipe.model)[0] != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _list(
    options: argparse.Namespace, ablation: "Ablation", lines: "Sequence[RunLine]", notes: "Sequence[str]"
) -> None:
    from ramify.commands.run_listing import SCHEMA

    finished = {line.name for line in lines}
    console = open_console(options)
    runs = [
        {
            "name": run.name,
            "finished": run.name in finished,
            "branching": run.branching,
            "settings": list(run.overrides),
        }
        for run in ablation.runs
    ]
    console.record({"schema": SCHEMA, "recipe": ablation.fingerprint, "runs": runs, "notes": notes})
    console.table(
        ("run", "state", "settings"),
        [
            (run.name, "finished" if run.name in finished else "to be trained", " ".join(run.overrides))
            for run in ablation.runs
        ],
    )
    for line in notes:
        console.result(line)


def _show_lines(options: argparse.Namespace) -> None:
    """Compare the runs of a folder or a file of results; with --out their page is written."""
    from ramify.files.durable import make_folder
    from ramify.study.contrasts import arm_names, compare_arms
    from ramify.study.lines import RESULTS, read_lines
    from ramify.study.page import refuse_other_content

    path = options.recipe / RESULTS if options.recipe.is_dir() else options.recipe
    lines = read_lines(path)
    if not lines:
        is_there = options.recipe.is_dir() or path.is_file()
        reason = "no run of it has ended yet" if is_there else "no such file"
        raise DataError(f"{options.recipe}: {reason}. Name the folder or the results.jsonl of an ablation.")
    if options.overrides or options.others or options.dry_run or options.seeds or options.jobs:
        raise ConfigError(
            f"{options.recipe}: finished runs are shown as they are. Leave out -s, --arm, --seeds, --jobs and --dry-run."
        )
    there = arm_names(lines)
    if wrong := [name for name in options.arms or () if name not in there]:
        raise ConfigError(f"--arms: {path} has no arm {wrong[0][:40]!r}. Choose among {', '.join(there)}.")
    if options.blind and options.out is not None:
        raise ConfigError("--blind: no page is written, which would show the means. Leave out --out.")
    if len(recipes := {line.recipe for line in lines}) > 1:
        raise DataError(
            f"{path}: runs of {len(recipes)} recipes, which cannot be compared. Give each a file."
        )
    result = compare_arms(lines, [name for name in there if name in (options.arms or there)])
    if options.out is not None:
        refuse_other_content(options.out, path)
        make_folder("--out", options.out)
    _write(open_console(options), result, options.out, path, blind=options.blind)


def _write(
    console: "RunConsole", result: "AblationResult", out: Path | None, lines: Path, *, blind: bool
) -> None:
    from ramify.commands.run_listing import SCHEMA
    from ramify.study.page import ABLATION_PAGE, arms_table, blind_table, contrasts_table, write_ablation

    def show(table: "Table") -> None:
        if table.rows:
            console.table(table.header, [list(map(str, row)) for row in table.rows])
            console.result("")

    if blind:
        show(blind_table(result.contrasts))
    else:
        if out is not None:
            write_ablation(result, out, lines)
        show(arms_table(result))
        show(contrasts_table(result.contrasts))
        for match in result.matches:
            console.result(
                f"seed {match.seed}: {match.yoked:.0f} branches of yoked for {match.rule:.0f} of rule ({match.ratio:.3f}), as many in "
                f"{match.same:.0%} of the trees"
            )
    for warning in result.warnings:
        console.note(f"warning: {warning}")
    folder = None if out is None else str(out)
    if blind:
        contrasts = [contrast.blind_json() for contrast in result.contrasts]
        warnings = list(result.warnings)
        console.record(
            {"schema": SCHEMA, "dir": folder, "blind": True, "contrasts": contrasts, "warnings": warnings}
        )
        return
    for contrast in result.contrasts:
        console.result(contrast.verdict)
    if out is not None:
        console.result(f"page: {out / ABLATION_PAGE}")
    console.record({"schema": SCHEMA, "dir": folder, **result.to_json()})


def _by_name(others: Sequence[tuple[str, str]]) -> dict[str, str]:
    # Folders whose names differ in capitals only are one on some machines.
    names = [name.lower() for name, _ in others]
    if twice := [name for name, _ in others if names.count(name.lower()) > 1]:
        raise ConfigError(f"--arm {twice[0]}: it is named twice. Choose another name.")
    return dict(others)


def _arms(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _other_arm(text: str) -> tuple[str, str]:
    from ramify.study.arms import ARM_NAME

    name, equals, rule = text.partition("=")
    if not equals or not rule.strip() or not ARM_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f'expected NAME={{name = "..", ..}} with at most 60 letters, digits and _ as NAME, got {text[:40]!r}'
        )
    if rule.strip().startswith("{"):
        import tomllib

        try:
            tomllib.loads(f"rule = {rule}")
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{name}: expected a table of TOML, with names in quotes, got {rule[:40]!r} ({error})"
            ) from None
    return name, rule
