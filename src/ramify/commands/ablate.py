"""`ramify ablate RECIPE`: does branching, and where it happens, help on this task; flat, yoked and the recipe's rule at equal cost."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import add_output, add_override, at_least_one, notes_of, open_console, recipe_file
from ramify.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ramify.obs.console import RunConsole
    from ramify.study.arms import Ablation, PlannedRun
    from ramify.study.contrasts import AblationResult
    from ramify.study.lines import RunLine

_ARMS = ("flat", "yoked", "rule")
_SEEDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "recipe",
        type=recipe_file,
        metavar="RECIPE.toml",
        help="a recipe of ramify train with [eval], or its name; or the results.jsonl of an ablation, which is shown and trains nothing",
    )
    add_override(parser)
    parser.add_argument(
        "--arms",
        type=_arms,
        default=_ARMS,
        metavar="NAMES",
        help="some of flat (no branching), yoked (as many branches as the rule, at results drawn by chance) and rule (the recipe's own); "
        "flat,yoked,rule",
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
    parser.add_argument(
        "--dry-run", action="store_true", help="check the recipe in every arm and list the runs"
    )
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe cannot be compared, or the folder holds another ablation.
        TrainingError: A run failed.
        RunInterruptedError: Ctrl-C or SIGTERM; the same command goes on.
    """
    if options.recipe.suffix == ".jsonl":
        _show_lines(options)
        return
    from ramify.files.durable import locked_folder, make_folder
    from ramify.study.arms import plan_ablation
    from ramify.study.lines import RESULTS, read_lines

    out: Path = options.out or Path("runs", f"ablate-{options.recipe.stem}")
    others = _by_name(options.others)
    ablation = plan_ablation(
        options.recipe, options.overrides, options.arms, others, options.seeds or _SEEDS, out
    )
    if options.dry_run:
        lines = read_lines(out / RESULTS)
        _refuse_others(ablation, {line.name: line for line in lines}, out)
        _list(options, ablation, lines)
        return
    from ramify.study.contrasts import compare_arms

    make_folder("--out", out)
    with locked_folder("--out", out):
        _refuse_other_files(out)
        trained = _train(options, ablation, out)
        planned = {run.name for run in ablation.runs}
        result = compare_arms([line for line in trained if line.name in planned], ablation.arms)
        _write(open_console(options), result, out)


def _train(options: argparse.Namespace, ablation: "Ablation", out: Path) -> "Sequence[RunLine]":
    """Train what is not finished yet; returns the lines of all runs in the folder."""
    from ramify.study.arms import YOKED
    from ramify.study.lines import RESULTS, STARTS, has_trees, line_of, read_lines, write_lines
    from ramify.study.processes import Launch, read_starts, train_runs

    lines = {line.name: line for line in read_lines(out / RESULTS)}
    _refuse_others(ablation, lines, out)
    left = [run for run in ablation.runs if run.name not in lines]
    # Of a pair whose line came from elsewhere the trees are needed too.
    pairs = {
        run.after for run in left if run.after in lines and not has_trees(out / run.after, lines[run.after])
    }
    left = [run for run in ablation.runs if run.name not in lines or run.name in pairs]
    _check_files(options, left)

    def record(run: "PlannedRun") -> None:
        pair = out / run.after if run.arm == YOKED else None
        starts = read_starts(out / STARTS).get(run.name, ())
        lines[run.name] = line_of(run, ablation.fingerprint, pair, starts)
        write_lines(out / RESULTS, list(lines.values()))

    done = [run.name for run in ablation.runs if run not in left]
    launch = Launch(options.recipe, out / "logs", out / STARTS, options.jobs or _jobs(ablation))
    if left:
        train_runs(left, done, launch, open_console(options), record)
    return list(lines.values())


def _refuse_others(ablation: "Ablation", lines: "Mapping[str, RunLine]", out: Path) -> None:
    for planned in ablation.runs:
        line = lines.get(planned.name)
        if line is None:
            continue
        if line.recipe != ablation.fingerprint:
            raise ConfigError(
                f"--out: {out} holds runs of another recipe, or with other -s. Name a new folder."
            )
        if line.branching != planned.branching:
            raise ConfigError(
                f"--arm {planned.arm}: {out} holds a run of this name with another rule. Choose another name or folder."
            )


def _refuse_other_files(out: Path) -> None:
    from ramify.files.durable import LOCK
    from ramify.study.lines import RESULTS, STARTS

    names = {path.name for path in out.iterdir()} - {LOCK, "logs"}
    if names and not names & {RESULTS, STARTS}:
        raise ConfigError(f"--out: {out} holds no ablation. Name a new folder.")


def _check_files(options: argparse.Namespace, runs: "Sequence[PlannedRun]") -> None:
    """Refuse missing files of any run before the first one starts."""
    from ramify.commands.check_files import check_files
    from ramify.config.load import load_recipe
    from ramify.config.schema_train import TrainRecipe

    for run in runs:
        if not run.after:
            check_files(load_recipe(TrainRecipe, options.recipe, run.overrides), note=notes_of(options))


def _jobs(ablation: "Ablation") -> int:
    from ramify.commands.memory import device_of

    if device_of(ablation.recipe.model)[0] != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _list(options: argparse.Namespace, ablation: "Ablation", lines: "Sequence[RunLine]") -> None:
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
    console.record({"schema": SCHEMA, "recipe": ablation.fingerprint, "runs": runs})
    console.table(
        ("run", "state", "settings"),
        [
            (run.name, "finished" if run.name in finished else "to be trained", " ".join(run.overrides))
            for run in ablation.runs
        ],
    )


def _show_lines(options: argparse.Namespace) -> None:
    """Compare the runs of a file of results; with --out their page is written."""
    from ramify.files.durable import make_folder
    from ramify.study.contrasts import arm_names, compare_arms
    from ramify.study.lines import read_lines

    if not options.recipe.is_file():
        raise DataError(f"{options.recipe}: no such file. Name the results.jsonl of an ablation.")
    if options.overrides or options.others or options.dry_run or options.arms != _ARMS or options.seeds:
        raise ConfigError(
            f"{options.recipe}: finished runs are shown as they are. Leave out -s, --arm, --arms, --seeds and --dry-run."
        )
    lines = read_lines(options.recipe)
    if len(recipes := {line.recipe for line in lines}) > 1:
        raise DataError(
            f"{options.recipe}: runs of {len(recipes)} recipes, which cannot be compared. Give each a file."
        )
    result = compare_arms(lines, arm_names(lines))
    if options.out is not None:
        make_folder("--out", options.out)
    _write(open_console(options), result, options.out)


def _write(console: "RunConsole", result: "AblationResult", out: Path | None) -> None:
    from ramify.commands.run_listing import SCHEMA
    from ramify.study.page import ABLATION_PAGE, arms_table, contrasts_table, write_ablation

    if out is not None:
        write_ablation(result, out)
    for table in (arms_table(result), contrasts_table(result.contrasts)):
        if table.rows:
            console.table(table.header, [list(map(str, row)) for row in table.rows])
            console.result("")
    for match in result.matches:
        console.result(
            f"seed {match.seed}: {match.yoked:.0f} branches of yoked for {match.rule:.0f} of rule ({match.ratio:.3f}), as many in "
            f"{match.same:.0%} of the trees"
        )
    for warning in result.warnings:
        console.note(f"warning: {warning}")
    for contrast in result.contrasts:
        console.result(contrast.verdict)
    if out is not None:
        console.result(f"page: {out / ABLATION_PAGE}")
    console.record({"schema": SCHEMA, "dir": None if out is None else str(out), **result.to_json()})


def _by_name(others: Sequence[tuple[str, str]]) -> dict[str, str]:
    names = [name for name, _ in others]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--arm {twice[0]}: it is named twice. Choose another name.")
    return dict(others)


def _arms(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if wrong := [name for name in names if name not in _ARMS]:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(_ARMS)}, got {wrong[0][:40]!r}; --arm adds others"
        )
    return names


def _other_arm(text: str) -> tuple[str, str]:
    name, equals, rule = text.partition("=")
    if not equals or not rule.strip() or not name.replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f'expected NAME={{name = "..", ..}}, got {text[:40]!r}')
    if rule.strip().startswith("{"):
        import tomllib

        try:
            tomllib.loads(f"rule = {rule}")
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{name}: expected a table of TOML, with names in quotes, got {rule[:40]!r} ({error})"
            ) from None
    return name, rule
