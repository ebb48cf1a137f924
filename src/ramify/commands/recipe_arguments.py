"""The arguments that every command with a recipe takes."""

import argparse
from pathlib import Path

from ramify.config.shipped import shipped_recipes


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, -s and --dry-run."""
    parser.add_argument(
        "recipe",
        type=recipe_file,
        metavar="RECIPE.toml",
        help="what to run: a file, or the name of a recipe that ships, such as arpo_reasoning_7b",
    )
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """-s and --dry-run."""
    add_override(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the recipe; print it with all defaults, and what it asks of this machine",
    )


def add_override(parser: argparse.ArgumentParser) -> None:
    """-s."""
    parser.add_argument(
        "-s",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.NAME=VALUE",
        help="set one key of the recipe; may be repeated",
    )


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """`add_recipe_arguments` and how far to train."""
    add_recipe_arguments(parser)
    parser.add_argument("--max-steps", type=at_least_one, metavar="N", help="stop after step N of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in run.dir")


def recipe_file(text: str) -> Path:
    """A recipe file, or the one that ships under this name (with `recipes/` and `.toml` or without) where there is none."""
    path = Path(text)
    shipped = shipped_recipes() / f"{path.name.removesuffix('.toml')}.toml"
    is_name = path.parent in (Path(), Path("recipes"))
    return shipped if is_name and not path.exists() and shipped.is_file() else path


def at_least_one(text: str) -> int:
    """Read a whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
