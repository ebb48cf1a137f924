"""`ramify dpo RECIPE.toml`: training on preference pairs (DPO)."""

import argparse
import sys

from ramify.commands.recipe_arguments import add_training_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_training_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.commands.check_files import check_example_files
    from ramify.commands.dry_run import dry_run
    from ramify.config.load import load_recipe
    from ramify.config.schema_dpo import DpoRecipe
    from ramify.train.run_folder import check_run_folder

    recipe = load_recipe(DpoRecipe, options.recipe, options.overrides)
    check_example_files(recipe, fetch=not options.dry_run)
    check_run_folder(recipe.run.dir, recipe, options.resume)
    if options.dry_run:
        sys.stdout.write(dry_run(recipe))
        return
    from ramify.obs.console import RunConsole
    from ramify.train.dpo import run_dpo

    console = RunConsole()
    path = run_dpo(recipe, console, resume=options.resume, max_steps=options.max_steps)
    console.note(f"model written to {path}")
