"""`ramify rollout RECIPE.toml`: grow the trees of a training recipe's first step and write them as a trace.

With `--from RUN:STEP:TREE/NODE` or `--from TRACE.jsonl:TREE/NODE` it grows one tree, which goes on from a node that was
recorded.
"""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import add_output, add_recipe, at_least_one, notes_of, open_console

if TYPE_CHECKING:
    from ramify.train.rollout import Place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recipe(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--from",
        dest="start",
        type=_start_node,
        metavar="RUN:STEP:TREE/NODE",
        help="go on from a node of a tree in RUN/trees/STEP.jsonl, or of TRACE.jsonl:TREE/NODE; TREE counts from 0; calls on "
        "the way there are made again",
    )
    which.add_argument(
        "--problems",
        type=at_least_one,
        metavar="N",
        help="grow a tree for each of the first N problems (default: rollout.problems_per_step)",
    )
    add_output(parser)


def _start_node(text: str) -> "Place":
    from ramify.runs.run_folder import RunFolder
    from ramify.train.rollout import Place

    number = "[0-9]{1,15}"
    match = re.fullmatch(rf"(.+\.jsonl|(.+):({number})):({number})/([^/:]*)", text, re.DOTALL)
    if match is None:
        raise argparse.ArgumentTypeError(
            "expected RUN:STEP:TREE/NODE, such as runs/mine:12:0/0.0, or TRACE.jsonl:TREE/NODE, "
            f"got {text[:100]!r}"
        )
    trace, run, step, tree, node = match.groups()
    path = Path(trace) if run is None else RunFolder(Path(run)).trees(int(step))
    return Place(path, int(tree), node)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.commands.check_files import check_files, dry_run, require_dry_run
    from ramify.config.load import load_recipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.runs.run_folder import ROLLOUT

    require_dry_run(options)
    recipe = load_recipe(TrainRecipe, options.recipe, options.overrides)
    check_files(recipe, fetch=not options.dry_run, note=notes_of(options), trains=False)
    ROLLOUT.check(recipe.run.dir, resume=False)
    if options.dry_run:
        trees = 1 if options.start is not None else options.problems
        dry_run(recipe, options, trees or recipe.rollout.problems_per_step)
        return
    from ramify.assemble.training import run_rollout
    from ramify.commands.run_listing import record_run

    console = open_console(options)
    metrics = run_rollout(recipe, console, options.problems, options.start)
    # Where no trajectory counts, there is no mean.
    mean, left_out = metrics.get("reward/mean"), metrics["reward/not_counted"]
    console.result(
        f"reward/mean {'none' if mean is None else f'{mean:.4g}'}  "
        f"{f'not counted {left_out:.0%}  ' if left_out else ''}branches {metrics['branch/taken']:.0f} taken of "
        f"{metrics['branch/planned']:.0f} planned  calls {metrics['calls/per_trajectory']:.3g} a trajectory "
        f"({metrics['calls/executed_per_trajectory']:.3g} executed)  "
        f"trees in {recipe.run.dir}"
    )
    record_run(console, recipe.run.dir, metrics=metrics)
