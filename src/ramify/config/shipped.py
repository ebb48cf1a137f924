"""Where the recipes are that ship with ramify."""

from pathlib import Path


def shipped_recipes() -> Path:
    """Their folder: inside an installed package, beside the sources of a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"
