"""`ramify sft RECIPE.toml`: supervised training."""

import argparse
import sys

from ramify.commands.check_files import require_file, require_model, require_new_run
from ramify.commands.recipe_arguments import add_training_arguments
from ramify.config.load import load_recipe, resolved
from ramify.config.schema_sft import SftRecipe
from ramify.obs.console import RunConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_training_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    recipe = load_recipe(SftRecipe, options.recipe, options.overrides)
    console = RunConsole()
    if options.dry_run:
        sys.stdout.write(resolved(recipe) + "\n")
    require_model(recipe.model.path)
    require_file("data.train", recipe.data.train)
    require_new_run(recipe.run, options.resume)
    if options.dry_run:
        return
    from ramify.train.sft import run_sft

    console.note(
        f"model written to {run_sft(recipe, console, resume=options.resume, max_steps=options.max_steps)}"
    )
