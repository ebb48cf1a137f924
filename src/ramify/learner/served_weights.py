"""Writes the learner's weights for a server: whole, under the names of a Hugging Face folder, one tensor at a time."""

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ramify.learner.checkpoint_files import sync
from ramify.modeling import plain_folder
from ramify.modeling.lora import merged_weight

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BASE = ".base_layer."
_ADAPTER = ".lora_"


class ServedWeights:
    """The parameters of a model: those of an adapter merged, a tied head under its own name too.

    Attributes:
        shapes: Shape of each tensor by name.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        modules = dict(model.named_modules())
        self._made: dict[str, Callable[[], torch.Tensor]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if _ADAPTER in name:
                continue
            owner, _, kind = name.partition(_BASE)
            plain = f"{owner}.{kind}" if kind else name
            merges = kind == "weight"
            self._made[plain] = partial(merged_weight, modules[owner]) if merges else parameter.detach
            self.shapes[plain] = tuple(parameter.shape)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """One of them, as `dtype`."""
        return self._made[name]().detach().to(dtype)


def write_weights(model: PreTrainedModel, folder: Path, dtype: str) -> None:
    """Write all parameters in `dtype` into a new folder, which is complete or absent.

    Raises:
        DataError: A weight is NaN or infinite.
        OSError: The folder cannot be written; nothing is left of it.
    """
    weights, kind = ServedWeights(model), _DTYPES[dtype]
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        _require_room(
            part, sum(torch.Size(shape).numel() for shape in weights.shapes.values()) * kind.itemsize
        )
        plain_folder.write_weights(part, weights, weights.shapes, kind, lambda: None)
        sync(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _require_room(folder: Path, needed: int) -> None:
    """Fail as the write itself would, but before it takes minutes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        told = f"{os.strerror(errno.ENOSPC)} ({needed / 1e9:.3g} GB are needed, {free / 1e9:.3g} GB are free)"
        raise OSError(errno.ENOSPC, told, str(folder))
