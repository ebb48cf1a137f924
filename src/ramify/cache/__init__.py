"""Caches and recordings of what services answered."""
