"""Recipes: their schemas, loading and checking them, and building the objects that they describe."""
