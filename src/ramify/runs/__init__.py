"""A run on the disk: its manifest, checkpoints, and files that grow line by line."""
