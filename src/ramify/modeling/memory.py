"""Decides whether a row fits into memory, and recomputes activations in the backward pass if it does not.

With recomputation (activation checkpointing) a layer saves only its input and computes the rest again: about a third
more compute, and the activations inside a layer exist for one layer at a time.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ramify.modeling.memory_plan import SHARES, row_bytes
from ramify.modeling.numerics import compute_device, compute_dtype


def available_bytes(device: torch.device) -> int:
    """Memory available to new tensors, in bytes: on the GPU, or in the machine as far as the system reports it."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        # Memory that torch has reserved but does not use is available to tensors; the driver counts it as used.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    table = Path("/proc/meminfo")
    if table.is_file():
        for line in table.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # A system that does not report free memory (macOS) at least reports the total.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def needs_checkpointing(model: PreTrainedModel, tokens: int, available_bytes: int) -> bool:
    """Return True if a row of `tokens` unique tokens fits into `available_bytes` only with recomputation.

    Memory for gradients that are not allocated yet is set aside.
    """
    device = compute_device(model).type
    # Of a model that is split, or kept in the machine's memory, this GPU holds only a part of the gradients, or none.
    gradients = sum(
        (parameter.to_local() if hasattr(parameter, "to_local") else parameter).nbytes
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.grad is None and parameter.device.type == device
    )
    row = row_bytes(model.config, tokens, compute_dtype(model).itemsize, device)
    return row.without_recompute > SHARES[device] * (available_bytes - gradients)


def set_checkpointing(model: PreTrainedModel, on: bool) -> None:
    """Switch recomputation of layers in the backward pass on or off; loss and gradients do not change."""
    # Not with transformers' own switch, which leaves a hook on the embedding, and the engine calls that module too.
    # There is no dropout, so no random state needs to be saved.
    recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            layer: Any = module
            layer._gradient_checkpointing_func = recompute
            layer.gradient_checkpointing = on
