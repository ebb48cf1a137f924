"""Packed rows, the exact update, checkpoints."""
