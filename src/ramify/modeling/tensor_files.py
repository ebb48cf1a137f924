"""Writes safetensors files one tensor at a time, and reads them.

So a GPU's state is never held a second time, and a model that does not fit into memory can be written; safetensors' own
writer takes all tensors at once, and copies everything that is not on the CPU first. The format
(github.com/huggingface/safetensors): 8 bytes with the header's length, a JSON header, then the bytes of all tensors.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class TensorHead:
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor's numbers."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a new file.

    Raises:
        OSError: The file exists, or cannot be written.
    """
    heads = {name: TensorHead(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    write_each_tensor(path, heads, tensors.__getitem__)


def write_each_tensor(
    path: Path, heads: Mapping[str, TensorHead], tensor: Callable[[str], torch.Tensor]
) -> None:
    """Write a new file; `tensor` is asked for one tensor at a time, of the type and shape in `heads`.

    Raises:
        OSError: The file exists, or cannot be written.
    """
    # The widest types first, so that every tensor is aligned.
    order = sorted(heads, key=lambda name: (-heads[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    end = 0
    for name in order:
        start, end = end, end + heads[name].nbytes
        header[name] = {
            "dtype": _NAMES[heads[name].dtype],
            "shape": list(heads[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            flat: Any = tensor(name).detach().cpu().contiguous().reshape(-1).view(torch.uint8)
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
