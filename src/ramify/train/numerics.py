"""Threads and determinism of torch, for the whole process."""

import torch

from ramify.config.schema_parts import RunSection


def set_numerics(section: RunSection) -> None:
    """Apply `run.threads` and `run.deterministic`."""
    if section.threads is not None:
        torch.set_num_threads(section.threads)
    torch.use_deterministic_algorithms(section.deterministic)
