"""Named tensors in one safetensors file, written one at a time, so that a GPU's state is never held a second time.

The format (github.com/huggingface/safetensors): 8 bytes with the header's length, a JSON header, then the bytes of
all tensors. safetensors' own writer copies everything that is not on the CPU before it writes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
_ALIGNMENT = 8


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a new file.

    Raises:
        OSError: The file exists, or cannot be written.
    """
    # The widest types first, so that every tensor is aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            flat: Any = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            file.write(flat.numpy())


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a file; the tensors are views of the file, which the system reads when they are used.

    Raises:
        ValueError: The file cannot be read, is not of this format, or holds a number that is not finite.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not all_finite(tensor):
            raise ValueError(f"{name} is not made of finite numbers")
    return tensors


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether no number is NaN or infinite; avoids the copies that `torch.isfinite` makes of a whole tensor."""
    return not tensor.numel() or all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor.detach()))
