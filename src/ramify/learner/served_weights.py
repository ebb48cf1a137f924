"""Writes the learner's weights for a server: whole, under the names of a Hugging Face folder, one tensor at a time."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ramify.learner.checkpoint_files import sync, write_made_tensors
from ramify.modeling.lora import merged_weight
from ramify.modeling.weight_files import INDEX

_LARGEST_FILE = 5_000_000_000
"""Bytes of a file of weights; a larger tensor has a file of its own."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BASE = ".base_layer."
_ADAPTER = ".lora_"


def write_weights(model: PreTrainedModel, folder: Path, dtype: str) -> None:
    """Write all parameters in `dtype` into a new folder, which is complete or absent.

    The matrices of an adapter are merged, and a tied head is written under its own name too.

    Raises:
        OSError: The folder cannot be written; nothing is left of it.
    """
    tensors, kind = served_tensors(model), _DTYPES[dtype]
    shapes = {name: (kind, shape) for name, (shape, _) in tensors.items()}
    files = _files(shapes)
    partial_folder = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial_folder, ignore_errors=True)
    try:
        partial_folder.mkdir(parents=True)
        _require_room(partial_folder, sum(shape.numel() * kind.itemsize for _, shape in shapes.values()))
        for file, names in files.items():
            write_made_tensors(
                partial_folder / file,
                {name: shapes[name] for name in names},
                lambda name: tensors[name][1]().to(kind),
            )
        index = {
            "metadata": {},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        (partial_folder / INDEX).write_text(json.dumps(index))
        sync(partial_folder)
        shutil.rmtree(folder, ignore_errors=True)
        partial_folder.rename(folder)
    except BaseException:
        shutil.rmtree(partial_folder, ignore_errors=True)
        raise


def served_tensors(
    model: PreTrainedModel,
) -> dict[str, tuple[torch.Size, Callable[[], torch.Tensor]]]:
    """Shape of each tensor of the plain model, by its name, and what makes it: with an adapter, the merged weight."""
    modules = dict(model.named_modules())
    made: dict[str, tuple[torch.Size, Callable[[], torch.Tensor]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if _ADAPTER in name:
            continue
        owner, _, kind = name.partition(_BASE)
        if kind == "weight":
            made[f"{owner}.weight"] = (parameter.shape, partial(merged_weight, modules[owner]))
        else:
            plain = f"{owner}.{kind}" if kind else name
            made[plain] = (parameter.shape, partial(_same, parameter))
    return made


def _same(parameter: torch.nn.Parameter) -> torch.Tensor:
    return parameter.detach()


def _files(shapes: Mapping[str, tuple[torch.dtype, torch.Size]]) -> dict[str, list[str]]:
    """Names of tensors by file, in their order."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, (dtype, shape) in shapes.items():
        bytes_ = shape.numel() * dtype.itemsize
        if groups[-1] and size + bytes_ > _LARGEST_FILE:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += bytes_
    count = len(groups)
    return {f"model-{i + 1:05d}-of-{count:05d}.safetensors": names for i, names in enumerate(groups)}


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        # As the write itself would end, but before it takes minutes.
        raise OSError(
            28,
            f"{os.strerror(28)} ({needed / 1e9:.3g} GB are needed, {free / 1e9:.3g} GB are free)",
            str(folder),
        )
