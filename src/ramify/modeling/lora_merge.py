"""Merges LoRA adapters into the weights that they belong to, one tensor at a time: W + scale B A, in float32."""

import math
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_ECHO
from ramify.modeling.lora import PREFIX, read_adapter_settings, require_base
from ramify.modeling.model_config import ADAPTER_SETTINGS, ADAPTER_WEIGHTS, read_object_file, whole_folder
from ramify.modeling.plain_folder import Weights, write_settings, write_weights
from ramify.modeling.tensor_files import weights_checksum
from ramify.modeling.weight_files import stored_tensors

_BASE = ".base_layer."
_A, _B = (".lora_A.", ".lora_B.")


class StoredWeights:
    """The tensors of a folder's safetensors files.

    Attributes:
        shapes: Shape of each tensor.
    """

    def __init__(self, folder: Path) -> None:
        """Read the headers.

        Raises:
            DataError: As for `stored_tensors`.
        """
        self._stored = stored_tensors(folder)
        self.shapes = {name: tensor.shape for name, tensor in self._stored.items()}

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor as `dtype`."""
        with safe_open(self._stored[name].file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        # Never the file's own pages, which must not be written to.
        return tensor.to(dtype, copy=True)


@dataclass(frozen=True, slots=True)
class Product:
    """Names of the matrices A and B that a weight gets, and what their product is multiplied by."""

    a: str
    b: str
    scale: float


class MergedWeights:
    """A base with an adapter.

    Attributes:
        shapes: Shape of each tensor, by its name in the whole model.
    """

    def __init__(
        self,
        base: Weights,
        names: Mapping[str, str],
        adapter: Weights,
        products: Mapping[str, Product],
    ) -> None:
        """Check that the shapes belong together.

        Args:
            base: The weights of the base.
            names: Names in `base` by name in the whole model.
            adapter: The matrices A and B.
            products: What is added, by name in the whole model.

        Raises:
            DataError: The adapter has matrices for other weights than these.
        """
        for name, product in products.items():
            a, b = adapter.shapes[product.a], adapter.shapes[product.b]
            if name not in names:
                raise DataError(f"{product.a}: the base has no {name}. The adapter is of another model")
            whole = base.shapes[names[name]]
            if len(a) != 2 or len(b) != 2 or (b[0], a[1]) != whole or b[1] != a[0]:
                raise DataError(
                    f"{product.a} {list(a)} and {product.b} {list(b)}: their product is not {name} {list(whole)}"
                )
        self._base, self._names, self._adapter, self._products = base, names, adapter, products
        self.shapes = {name: base.shapes[stored] for name, stored in names.items()}

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a weight with its product, as `dtype`."""
        if name not in self._products:
            return self._base.tensor(self._names[name], dtype)
        product = self._products[name]
        whole = self._base.tensor(self._names[name], torch.float32)
        a, b = (self._adapter.tensor(part, torch.float32) for part in (product.a, product.b))
        return whole.addmm_(b, a, alpha=product.scale).to(dtype)


def adapted_folder(folder: Path) -> MergedWeights:
    """Return the base of a peft folder with the adapter, for a plain LoRA adapter.

    Raises:
        DataError: The folder is no plain LoRA adapter, or its base is missing or another one.
    """
    base = whole_folder(folder)
    path = folder / ADAPTER_SETTINGS
    record = read_adapter_settings(folder)
    if record.get("alpha_pattern"):
        raise DataError(f"{path}: alpha_pattern is not merged here. Merge it with peft's merge_and_unload()")
    require_base(folder, weights_checksum(base))
    weights, adapter = StoredWeights(base), StoredWeights(folder)
    alpha = float(record.get("lora_alpha", 8))
    products = {}
    for name, (a, b) in adapter_pairs(adapter.shapes, folder / ADAPTER_WEIGHTS).items():
        rank = adapter.shapes[a][0]
        if rank != (expected := _rank_of(name.removesuffix(".weight"), record, path)):
            raise DataError(f"{path}: says rank {expected} for {name}, but {a} has rank {rank}")
        products[name] = Product(a, b, alpha / (math.sqrt(rank) if record.get("use_rslora") else rank))
    return MergedWeights(weights, {name: name for name in weights.shapes}, adapter, products)


def _rank_of(module: str, record: Mapping[str, Any], path: Path) -> int:
    """Return the rank that an adapter's settings give to a module.

    Raises:
        DataError: A pattern is more than a name, or the end of one.
    """
    for pattern, rank in (record.get("rank_pattern") or {}).items():
        name = pattern.removeprefix("^")
        if not re.fullmatch(r"[\w.]+", name):
            raise DataError(
                f"{path}: rank_pattern: {pattern[:MAX_ECHO]!r} is no name. Merge it with peft's merge_and_unload()"
            )
        if module == name or (module.endswith(f".{name}") and name == pattern):
            return int(rank)
    return int(record.get("r", 8))


def write_merged(adapter: Path, folder: Path) -> Path:
    """Write an adapter and its base as one plain model in float32, whole or not at all; returns `folder`.

    Raises:
        DataError: As for `adapted_folder`; or a weight is not finite.
        OSError: The files cannot be written.
    """
    weights, base = adapted_folder(adapter), whole_folder(adapter)
    unfinished = folder.with_name(f".{folder.name}.partial")
    for old in (unfinished, folder):
        shutil.rmtree(old, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write_weights(unfinished, weights, list(weights.shapes), torch.float32, lambda: None)
    write_settings(unfinished, read_object_file(base / "config.json"), "float32", (adapter, base))
    unfinished.replace(folder)
    return folder


def is_adapted(names: Iterable[str]) -> bool:
    """Return True if these are names of a model that peft has wrapped."""
    return any(_A in name for name in names)


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return the base's names in a model that peft has wrapped, by their names in the plain model."""
    return {
        name.removeprefix(PREFIX).replace(_BASE, "."): name
        for name in names
        if _A not in name and _B not in name
    }


def adapter_pairs(names: Iterable[str], path: Path) -> dict[str, tuple[str, str]]:
    """Return the matrices A and B of each weight, by its name in the plain model; `path` is the prefix of the message.

    Raises:
        DataError: One of a pair is missing.
    """
    parts = {
        side: {
            name.partition(side)[0].removeprefix(PREFIX) + ".weight": name for name in names if side in name
        }
        for side in (_A, _B)
    }
    if single := sorted(parts[_A].keys() ^ parts[_B].keys()):
        raise DataError(f"{path}: {single[0]} has one of lora_A and lora_B only")
    return {name: (parts[_A][name], parts[_B][name]) for name in parts[_A]}
