"""`ramify eval RECIPE.toml`: independent attempts at a set of problems."""

import argparse
import sys

from ramify.commands.check_files import require_file, require_model, require_script, require_tools
from ramify.commands.recipe_arguments import add_recipe_arguments
from ramify.config.load import load_recipe, resolved
from ramify.config.schema_eval import EvalRecipe
from ramify.obs.console import RunConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_recipe_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    recipe = load_recipe(EvalRecipe, options.recipe, options.overrides)
    if options.dry_run:
        sys.stdout.write(resolved(recipe) + "\n")
    require_model(recipe.model.path)
    require_file("data.test", recipe.data.test)
    require_tools(recipe.tools)
    require_script(recipe.engine)
    if options.dry_run:
        return
    from ramify.eval.run import run_eval

    console = RunConsole()
    evaluation = run_eval(recipe, console)
    for k in recipe.sampling.k:
        found = evaluation.pass_at(k)
        console.note(f"pass@{k} {found.value:.3f}  95 % [{found.low:.3f}, {found.high:.3f}]  n = {found.n}")
