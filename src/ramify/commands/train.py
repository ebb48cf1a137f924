"""`ramify train RECIPE.toml`: reinforcement learning.

Like every command it imports heavy modules only when it runs, so that `--help` is quick.
"""

import argparse
import sys

from ramify.commands.recipe_arguments import add_training_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_training_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.commands.check_files import check_train_files
    from ramify.commands.dry_run import dry_run
    from ramify.config.load import load_recipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.train.run_folder import check_run_folder

    recipe = load_recipe(TrainRecipe, options.recipe, options.overrides)
    check_train_files(recipe, fetch=not options.dry_run)
    check_run_folder(recipe.run.dir, recipe, options.resume)
    if options.dry_run:
        sys.stdout.write(dry_run(recipe))
        return
    from ramify.obs.console import RunConsole
    from ramify.train.rl import run_rl

    console = RunConsole()
    path = run_rl(recipe, console, resume=options.resume, max_steps=options.max_steps)
    console.note(f"model written to {path}")
