"""Recipes: schemas, loading, and the one place that builds concrete parts."""
