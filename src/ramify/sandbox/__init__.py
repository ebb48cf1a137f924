"""Process isolation for code that nobody has read."""
