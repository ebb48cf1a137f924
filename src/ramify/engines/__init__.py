"""Engines: what generates tokens."""
