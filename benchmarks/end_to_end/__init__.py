"""A whole training step, from the prompt to the moved weights, against TRL with tools."""
