"""The training loops."""
