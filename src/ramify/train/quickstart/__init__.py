"""The quick start: every part of ramify once, in a world small enough for a laptop's CPU."""
