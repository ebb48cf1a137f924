"""Recipes: their schemas, loading and checking them."""

from pathlib import Path


def shipped_recipes() -> Path:
    """Return the folder of the recipes that ship with ramify: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"
