"""`ramify case`: a recorded trajectory as a test of the tools and the reward."""

import argparse
from pathlib import Path

from ramify.commands.parser import add_step, add_tree
from ramify.core.errors import CaseError, ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "places",
        type=Path,
        nargs="+",
        metavar="CASE|RUN|TRACE",
        help="cases to check; or, with --leaf, the run folder or file of trees that one is made from",
    )
    add_step(parser)
    add_tree(parser, "make a case of a trajectory of this tree")
    parser.add_argument("--leaf", metavar="LEAF", help="of --tree: the id of the trajectory's leaf")
    parser.add_argument("--out", type=Path, metavar="DIR", help="with --leaf: the new folder of the case")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: A file or an option is wrong.
        CaseError: A case differs from what it expects.
    """
    making = (options.tree, options.leaf, options.out)
    if any(option is not None for option in (*making, options.step)):
        if None in making or len(options.places) > 1:
            raise ConfigError("--leaf: to make a case takes --tree, --leaf, --out and one RUN or TRACE")
        _make(options)
    else:
        _check(options.places)


def _make(options: argparse.Namespace) -> None:
    from ramify.assemble.cases import write_case
    from ramify.commands.output_files import new_output_folder
    from ramify.obs.console import RunConsole
    from ramify.runs.recorded_trees import recipe_of, trace_of, trajectory_at, tree_at

    trace = trace_of(options.places[0], options.step)
    scored, recipe = tree_at(trace, options.tree), recipe_of(trace)
    if recipe is None:
        raise ConfigError(f"{trace}: its run has no recipe.toml, which says the tools and the reward")
    index = trajectory_at(scored.tree, options.leaf)
    with new_output_folder("--out", options.out) as folder:
        write_case(scored, index, recipe, folder, options.out)
    RunConsole().result(f"case written to {options.out}; check it with ramify case {options.out}")


def _check(cases: list[Path]) -> None:
    from ramify.assemble.cases import replay_case
    from ramify.obs.console import RunConsole

    console = RunConsole()
    failed = []
    for folder in cases:
        lines = replay_case(folder, console)
        console.result("\n".join([f"{folder}: {'as recorded' if not lines else 'differs'}", *lines]))
        failed += [folder] if lines else []
    if failed:
        raise CaseError(f"{len(failed)} of {len(cases)} cases differ: {', '.join(map(str, failed))}")
