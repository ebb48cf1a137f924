"""`ramify selfcritic RECIPE.toml`: RL and DPO on the policy's own answers in turn; started and stopped as `commands.train` does."""

import argparse

from ramify.commands import train
from ramify.commands.parser import add_output, add_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recipe(parser)
    parser.add_argument("--resume", action="store_true", help="go on where run.dir was left, in any phase")
    add_output(parser)
    parser.set_defaults(max_steps=None)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    train.run(options)
