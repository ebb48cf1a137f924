"""Threads, determinism, memory and the device of torch, for the whole process; and the type that a model computes in."""

import ctypes
import gc
import os
import sys

import torch
from transformers import PreTrainedModel

from ramify.runtime.machine_memory import memory_left

_MMAP_THRESHOLD = -3
"""glibc's M_MMAP_THRESHOLD."""
LARGE = 4 << 20
"""Bytes. Smaller tensors come from the heap, where freed ones leave gaps; below this, mapping costs more time than it is worth."""


def map_large_tensors() -> None:
    """Have glibc map tensors of `LARGE` bytes and more for the whole process; with another C library nothing changes.

    By itself glibc raises its threshold to 32 MiB as tensors are freed. Then the activations of a row lie in the heap, and
    gaps that no tensor fits make a process rise by up to twice what its tensors take.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE)


def set_numerics(threads: int | None, deterministic: bool) -> None:
    """Use `threads` threads (None: torch's own choice) and, on request, only deterministic operations; map large tensors."""
    map_large_tensors()
    if threads is not None:
        torch.set_num_threads(threads)
    if deterministic:
        # Torch refuses deterministic matrix products on a GPU without it; cuBLAS reads it at first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)


def device_name(device: str) -> str:
    """Return the name of the hardware behind "auto", "cuda" or "cpu"."""
    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu"


def available_bytes(device: torch.device) -> int:
    """Return the memory available to new tensors, in bytes: on the GPU, or in the machine as far as the system reports it."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        # Memory that torch has reserved but does not use is available to tensors; the driver counts it as used.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return memory_left()


def release_cached(device: torch.device) -> None:
    """Give back the memory of a GPU that torch's allocator keeps and no tensor uses; on a CPU there is nothing to do."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def compute_device(model: PreTrainedModel) -> torch.device:
    """Return the device that a model computes on; its weights may lie in the machine's memory (`learner.sharding`)."""
    device = getattr(model, "computes_on", None)
    return device if isinstance(device, torch.device) else model.device


def compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the type of a model's activations: of masks, of keys and values, of what a row takes.

    A model over several processes keeps its weights in float32 and gathers them in this type (`learner.sharding`); any
    other model computes in the type of its weights.
    """
    dtype = getattr(model, "computes_in", None)
    return dtype if isinstance(dtype, torch.dtype) else next(model.parameters()).dtype
