"""Threads, determinism and the device of torch, for the whole process."""

import os

import torch


def set_numerics(threads: int | None, deterministic: bool) -> None:
    """Use `threads` threads (None: torch's own choice) and, on request, only deterministic operations."""
    if threads is not None:
        torch.set_num_threads(threads)
    if deterministic:
        # Torch refuses deterministic matrix products on a GPU without it; cuBLAS reads it at first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)


def device_name(device: str) -> str:
    """Name of the hardware behind "auto", "cuda" or "cpu"."""
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu"
