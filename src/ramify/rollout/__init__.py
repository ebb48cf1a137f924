"""The agent loop, and growing trees with it."""
