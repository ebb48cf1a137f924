"""Arguments that the commands with a recipe share."""

import argparse
from pathlib import Path

from ramify.config.shipped import shipped_recipes


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Add RECIPE, -s and --dry-run."""
    parser.add_argument(
        "recipe",
        type=recipe_file,
        metavar="RECIPE.toml",
        help="what to run: a file, or the name of a shipped recipe, such as arpo_reasoning_7b",
    )
    add_override_arguments(parser)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """Add -s and --dry-run."""
    add_override(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the recipe; print it with all defaults, and what it needs of this machine",
    )


def add_override(parser: argparse.ArgumentParser) -> None:
    """Add -s."""
    parser.add_argument(
        "-s",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.NAME=VALUE",
        help="set one key of the recipe; may be repeated",
    )


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add RECIPE, -s, --dry-run, --max-steps and --resume."""
    add_recipe_arguments(parser)
    parser.add_argument("--max-steps", type=at_least_one, metavar="N", help="stop after step N of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in run.dir")


def recipe_file(text: str) -> Path:
    """The recipe file `text`; if there is none, the shipped recipe of that name (`recipes/`, `.toml` are optional)."""
    path = Path(text)
    shipped = shipped_recipes() / f"{path.name.removesuffix('.toml')}.toml"
    is_name = path.parent in (Path(), Path("recipes"))
    return shipped if is_name and not path.exists() and shipped.is_file() else path


def at_least_one(text: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
