"""`ramify train RECIPE.toml`: reinforcement learning."""

import argparse
import sys

from ramify.commands.check_files import (
    require_file,
    require_model,
    require_new_run,
    require_script,
    require_tools,
)
from ramify.commands.recipe_arguments import add_training_arguments
from ramify.config.load import load_recipe, resolved
from ramify.config.schema_train import TrainRecipe
from ramify.obs.console import RunConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_training_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    recipe = load_recipe(TrainRecipe, options.recipe, options.overrides)
    console = RunConsole()
    if options.dry_run:
        sys.stdout.write(resolved(recipe) + "\n")
    check(recipe, options.resume)
    if options.dry_run:
        return
    from ramify.train.rl import run_rl

    console.note(
        f"model written to {run_rl(recipe, console, resume=options.resume, max_steps=options.max_steps)}"
    )


def check(recipe: TrainRecipe, resume: bool) -> None:
    """Look for every file that the recipe names.

    Raises:
        ConfigError: One is missing, or the run's folder is taken.
    """
    require_model(recipe.model.path)
    require_file("data.train", recipe.data.train)
    require_tools(recipe.tools)
    require_script(recipe.engine)
    require_new_run(recipe.run, resume)
