"""What a row costs in memory, and recomputing layers in the backward pass where that is too much.

With recomputing, a layer keeps its input alone and computes the rest a second time: about a third more work for memory
that no longer grows with layers times all that is inside one.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ramify.modeling.row_bytes import row_bytes


def available_bytes(device: torch.device) -> int:
    """Memory that new tensors can take on a GPU, or on the CPU's machine as far as the system tells."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        # What torch holds without using it is free for tensors, though not for the driver.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    table = Path("/proc/meminfo")
    if table.is_file():
        for line in table.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # A system that does not tell what is free (macOS) tells what is there.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def needs_checkpointing(model: PreTrainedModel, tokens: int, available_bytes: int) -> bool:
    """Whether a row of `tokens` unique tokens would not fit into `available_bytes` without recomputing.

    Gradients that do not exist yet count as taken.
    """
    gradients = sum(
        parameter.nbytes
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.grad is None
    )
    device = model.device.type
    row = row_bytes(model.config, tokens, model.dtype.itemsize, device)
    return row.recomputes(available_bytes - gradients, device)


def set_checkpointing(model: PreTrainedModel, on: bool) -> None:
    """Recompute each layer in the backward pass, or stop doing so; loss and gradients stay what they are."""
    # Not through transformers' switch: it leaves a hook on the embedding, and the engine calls that module too. Without
    # dropout nothing is drawn, so no random state has to be kept.
    recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            layer: Any = module
            layer._gradient_checkpointing_func = recompute
            layer.gradient_checkpointing = on
