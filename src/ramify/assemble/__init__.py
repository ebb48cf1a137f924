"""Recipes into objects: the only package that knows both recipes and concrete parts."""
