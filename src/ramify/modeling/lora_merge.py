"""Merges LoRA adapters into the weights that they belong to, one tensor at a time: W + scale B A, in float32."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ramify.core.errors import DataError
from ramify.modeling.load import shapes_of
from ramify.modeling.lora import require_base
from ramify.modeling.lora_products import (
    EMBEDDING,
    HEAD,
    MERGE_ELSEWHERE,
    Product,
    plain_name,
    products_of,
    require_mergeable,
)
from ramify.modeling.model_config import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    WRAPPERS,
    read_object_file,
    whole_folder,
)
from ramify.modeling.plain_folder import Weights, write_settings, write_weights
from ramify.modeling.tensor_files import weights_checksum
from ramify.modeling.weight_files import decoder_name, stored_tensors


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


class MergedWeights:
    """A base with an adapter.

    Attributes:
        shapes: Shape of each tensor, by its name in the whole model.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Weights, str]],
        adapter: Weights,
        products: Mapping[str, Product],
    ) -> None:
        """Check that the shapes belong together.

        Args:
            sources: Where W is, by name in the whole model: the weights, and its name there.
            adapter: The matrices A and B.
            products: What is added, by name in the whole model.

        Raises:
            DataError: The adapter has matrices for other weights than these.
        """
        self.shapes = {name: weights.shapes[stored] for name, (weights, stored) in sources.items()}
        for name, product in products.items():
            a, b = adapter.shapes[product.a], adapter.shapes[product.b]
            if name not in self.shapes:
                raise DataError(f"{product.a}: the base has no {name}. The adapter is of another model")
            whole = self.shapes[name][::-1] if product.transposed else self.shapes[name]
            if len(a) != 2 or len(b) != 2 or (b[0], a[1]) != whole or b[1] != a[0]:
                raise DataError(
                    f"{product.a} {list(a)} and {product.b} {list(b)}: their product is not {name} {list(self.shapes[name])}"
                )
        self._sources, self._adapter, self._products = sources, adapter, products

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a weight with its product, as `dtype`."""
        weights, stored = self._sources[name]
        if name not in self._products:
            return weights.tensor(stored, dtype)
        product = self._products[name]
        whole = weights.tensor(stored, torch.float32)
        a, b = (self._adapter.tensor(part, torch.float32) for part in (product.a, product.b))
        left, right = (a.T, b.T) if product.transposed else (b, a)
        return whole.addmm_(left, right, alpha=product.scale).to(dtype)


@dataclass(frozen=True, slots=True)
class MergedModel:
    """A base with an adapter as one model.

    Attributes:
        weights: Its tensors.
        config: Content of its `config.json`, with the base's type of weights.
        untied: True if the base's head is its embedding and the merged model's is not.
    """

    weights: MergedWeights
    config: dict[str, Any]
    untied: bool


def adapted_folder(folder: Path) -> MergedModel:
    """Return the base of a peft folder with its LoRA adapter.

    An embedding or a head with an adapter of its own is not the other one any more, so a tied base gets a head. (peft
    adds the product to both unless the base was untied before, which it advises.)

    Raises:
        DataError: A tensor or a setting of the adapter cannot be merged, the folder is no LoRA adapter, or its base is
            missing or another one.
    """
    base = whole_folder(folder)
    record = read_object_file(folder / ADAPTER_SETTINGS)
    adapter = StoredWeights(folder)
    require_mergeable(record, adapter.shapes, folder)
    require_base(folder, weights_checksum(base))
    weights = StoredWeights(base)
    products = products_of(record, adapter.shapes, folder)
    whole = {plain: name for name in adapter.shapes if (plain := plain_name(name)) in (EMBEDDING, HEAD)}
    used = {*whole.values(), *(part for product in products.values() for part in (product.a, product.b))}
    if unused := sorted(adapter.shapes.keys() - used):
        raise DataError(
            f"{folder / ADAPTER_WEIGHTS}: {unused[0]} is there under another name too. Keep one of them"
        )
    sources: dict[str, tuple[Weights, str]] = {name: (weights, name) for name in weights.shapes}
    config = read_object_file(base / "config.json")
    if config["model_type"] in WRAPPERS:
        stored = {decoder_name(name): name for name in weights.shapes}
        products = {stored.get(decoder_name(name), name): product for name, product in products.items()}
    tied = bool(shapes_of(config, f"{base / 'config.json'}")[1].tie_word_embeddings)
    # transformers leaves a stored head that differs from the embedding as it is, whatever the configuration says.
    if tied and not _are_same(weights, [name for name in (EMBEDDING, HEAD) if name in sources]):
        tied = config["tie_word_embeddings"] = False
    untied = tied and not products.keys().isdisjoint((EMBEDDING, HEAD))
    if tied and HEAD in sources:
        sources.setdefault(EMBEDDING, sources.pop(HEAD))
    if tied and HEAD in whole:
        names = list(whole.values())
        if not _are_same(adapter, names):
            raise DataError(
                f"{folder / ADAPTER_WEIGHTS}: {' and '.join(names)} differ, but the base ties them "
                f"(tie_word_embeddings). {MERGE_ELSEWHERE}"
            )
        whole = {EMBEDDING: names[0]}
    sources |= {plain: (adapter, name) for plain, name in whole.items()}
    if untied and EMBEDDING in sources:
        sources[HEAD] = sources[EMBEDDING]
        config["tie_word_embeddings"] = False
    if EMBEDDING in whole:
        config["vocab_size"] = _rows(adapter, whole[EMBEDDING], folder)
    return MergedModel(MergedWeights(sources, adapter, products), config, untied)


def _are_same(weights: StoredWeights, names: list[str]) -> bool:
    first = weights.tensor(names[0], torch.float32) if len(names) > 1 else None
    return first is None or torch.equal(first, weights.tensor(names[1], torch.float32))


def _rows(adapter: StoredWeights, name: str, folder: Path) -> int:
    shape = adapter.shapes[name]
    if len(shape) != 2:
        raise DataError(f"{folder / ADAPTER_WEIGHTS}: {name} is {list(shape)}, expected a matrix")
    return shape[0]


def write_merged(adapter: Path, folder: Path) -> Path:
    """Write an adapter and its base as one plain model in float32, whole or not at all; returns `folder`.

    Raises:
        DataError: As for `adapted_folder`; or a weight is not finite.
        OSError: The files cannot be written.
    """
    merged, base = adapted_folder(adapter), whole_folder(adapter)
    unfinished = folder.with_name(f".{folder.name}.partial")
    for old in (unfinished, folder):
        shutil.rmtree(old, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write_weights(unfinished, merged.weights, list(merged.weights.shapes), torch.float32, lambda: None)
    write_settings(unfinished, merged.config, "float32", (adapter, base))
    unfinished.replace(folder)
    return folder
