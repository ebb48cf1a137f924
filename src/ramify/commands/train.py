"""`ramify train`, `ramify sft` and `ramify dpo RECIPE.toml`: reinforcement learning, supervised training, pairs (DPO).

Like every command they import heavy modules only when they run, so that `--help` is quick.
"""

import argparse
import sys

from ramify.commands.parser import add_recipe, at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands' arguments."""
    add_recipe(parser)
    parser.add_argument("--max-steps", type=at_least_one, metavar="N", help="stop after step N of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in run.dir")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.commands.check_files import check_example_files, check_train_files
    from ramify.commands.estimate import dry_run
    from ramify.config.load import load_recipe
    from ramify.config.schema_examples import DpoRecipe, SftRecipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.train.run_folder import check_run_folder

    schemas: dict[str, type[TrainRecipe | SftRecipe]] = {
        "train": TrainRecipe,
        "sft": SftRecipe,
        "dpo": DpoRecipe,
    }
    recipe = load_recipe(schemas[options.command], options.recipe, options.overrides)
    if isinstance(recipe, TrainRecipe):
        check_train_files(recipe, fetch=not options.dry_run)
    else:
        check_example_files(recipe, fetch=not options.dry_run)
    check_run_folder(recipe.run.dir, recipe, options.resume)
    if options.dry_run:
        sys.stdout.write(dry_run(recipe))
        return
    from ramify.obs.console import RunConsole

    console = RunConsole()
    if isinstance(recipe, TrainRecipe):
        from ramify.train.rl import run_rl

        path = run_rl(recipe, console, resume=options.resume, max_steps=options.max_steps)
    elif isinstance(recipe, DpoRecipe):
        from ramify.train.dpo import run_dpo

        path = run_dpo(recipe, console, resume=options.resume, max_steps=options.max_steps)
    else:
        from ramify.train.sft import run_sft

        path = run_sft(recipe, console, resume=options.resume, max_steps=options.max_steps)
    console.note(f"model written to {path}")
