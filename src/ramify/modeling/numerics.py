"""Threads and determinism of torch, for the whole process."""

import torch


def set_numerics(threads: int | None, deterministic: bool) -> None:
    """Use `threads` threads (None: torch's own choice) and, on request, only deterministic operations."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
