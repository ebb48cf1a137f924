"""Measurements, one package for each family of rows: `python -m benchmarks.rollout --json` from the clone's root."""
