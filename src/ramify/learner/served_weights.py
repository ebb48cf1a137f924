"""Writes the learner's weights for a server: whole, under the names of a Hugging Face folder, one tensor at a time."""

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ramify.files.durable import sync_folder
from ramify.learner.update import Learner
from ramify.modeling import plain_folder
from ramify.modeling.lora import adapted_parts, adapter_scaling, merged

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BASE = ".base_layer."
_ADAPTER = ".lora_"


class ServedWeights:
    """The parameters of a learner's model: those of an adapter merged, a tied head under its own name too.

    Attributes:
        shapes: Shape of each tensor by name.
    """

    def __init__(self, learner: Learner) -> None:
        self._whole = learner.whole_parameter
        named = dict(learner.model.named_parameters(remove_duplicate=False))
        # A tied parameter has several names, and is asked for by the one that the optimizer uses.
        first = {id(parameter): name for name, parameter in learner.model.named_parameters()}
        modules = dict(learner.model.named_modules())
        self._loaders: dict[str, Callable[[], torch.Tensor]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, parameter in named.items():
            if _ADAPTER in name:
                continue
            owner, _, kind = name.partition(_BASE)
            plain = f"{owner}.{kind}" if kind else name
            merges = kind == "weight"
            self._loaders[plain] = (
                partial(self._merged, owner, modules[owner])
                if merges
                else partial(self._whole, first[id(parameter)])
            )
            self.shapes[plain] = tuple(parameter.shape)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor as `dtype`."""
        return self._loaders[name]().detach().to(dtype)

    def _merged(self, owner: str, module: torch.nn.Module) -> torch.Tensor:
        base, *matrices = (self._whole(f"{owner}.{part}") for part in adapted_parts())
        # A base that is not split stays where it is; what was gathered is on a CPU.
        a, b = (matrix.to(base.device) for matrix in matrices)
        return merged(base, a, b, adapter_scaling(module))


def write_weights(learner: Learner, folder: Path, dtype: str) -> None:
    """Write all parameters in `dtype` into a new folder, which is complete or absent.

    Raises:
        DataError: A weight is NaN or infinite.
        OSError: The folder cannot be written; nothing is left of it.
    """
    weights, kind = ServedWeights(learner), _DTYPES[dtype]
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        _require_room(
            part, sum(torch.Size(shape).numel() for shape in weights.shapes.values()) * kind.itemsize
        )
        plain_folder.write_weights(part, weights, weights.shapes, kind, lambda: None)
        sync_folder(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _require_room(folder: Path, needed: int) -> None:
    """Fail as the write itself would, but before it takes minutes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        message = (
            f"{os.strerror(errno.ENOSPC)} ({needed / 1e9:.3g} GB are needed, {free / 1e9:.3g} GB are free)"
        )
        raise OSError(errno.ENOSPC, message, str(folder))
