"""The examples: worlds, their demonstrator, and the runs that `ramify quickstart` makes with them."""
