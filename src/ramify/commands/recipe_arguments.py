"""The arguments that every command with a recipe takes."""

import argparse
from pathlib import Path


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, -s and --dry-run."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE.toml", help="what to run")
    parser.add_argument(
        "-s",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.NAME=VALUE",
        help="set one key of the recipe; may be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check the recipe and print it with all defaults"
    )


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """`add_recipe_arguments` and how far to train."""
    add_recipe_arguments(parser)
    parser.add_argument("--max-steps", type=_positive, metavar="N", help="stop after step N of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in run.dir")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return value
