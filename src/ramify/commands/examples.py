"""`ramify sft` and `ramify dpo RECIPE.toml`: what `commands.train` does, or a look at what would be trained on."""

import argparse
import os

from ramify.commands import train
from ramify.commands.parser import at_least_one
from ramify.core.errors import ConfigError
from ramify.core.rank import launched

_SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands' arguments."""
    train.add_arguments(parser)
    parser.add_argument(
        "--show-mask",
        type=at_least_one,
        nargs="?",
        const=_SHOWN,
        metavar="N",
        help=f"print the first N examples (without N: {_SHOWN}), trained text told apart from masked text, and train nothing",
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.show_mask is None:
        train.run(options)
    elif options.dry_run or options.rows or options.resume or options.json or options.max_steps is not None:
        raise ConfigError(
            "--show-mask trains nothing; leave out --dry-run, --rows, --resume, --json and --max-steps"
        )
    elif launched(os.environ).number == 0:
        _show_mask(options)


def _show_mask(options: argparse.Namespace) -> None:
    from ramify.assemble.examples import open_examples
    from ramify.assemble.tools import show_tools
    from ramify.commands.check_files import check_files
    from ramify.config.load import load_recipe
    from ramify.config.schema_examples import DpoRecipe, SftRecipe
    from ramify.data.sources import named
    from ramify.obs.console import RunConsole
    from ramify.train.mask import show_mask

    schema = DpoRecipe if options.command == "dpo" else SftRecipe
    recipe = load_recipe(schema, options.recipe, options.overrides)
    check_files(recipe, trains=False)
    console = RunConsole()
    tools = show_tools(recipe.tools, recipe.environment)
    rows, reader = open_examples(recipe, tools, console.note)
    show_mask(named(recipe.data.train), rows, reader, console, options.show_mask)
