"""Merges LoRA adapters into the weights that they belong to, one tensor at a time: W + scale B A, in float32.

Every tensor of an adapter's file is merged or refused by its name. The file has A and B of linear layers, and those of
the embedding, whose product is transposed. Where the vocabulary was resized or the embedding has an adapter, peft also
writes the embedding and the head whole. Patterns in the settings mean what they mean in peft; settings that leave
W + scale B A as it is, such as dropout, are not looked at.
"""

import math
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from safetensors import safe_open

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_ECHO
from ramify.modeling.load import shapes_of
from ramify.modeling.lora import MAY_DIFFER, PREFIX, require_base, require_numbers
from ramify.modeling.model_config import ADAPTER_SETTINGS, ADAPTER_WEIGHTS, read_object_file, whole_folder
from ramify.modeling.plain_folder import Weights, write_settings, write_weights
from ramify.modeling.tensor_files import weights_checksum
from ramify.modeling.weight_files import stored_tensors

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

_BASE = ".base_layer."
_A, _B = ".lora_A.", ".lora_B."
_EMBEDDING_A, _EMBEDDING_B = ".lora_embedding_A", ".lora_embedding_B"
_MATRIX = re.compile(r".+\.(lora_[AB](\.\w+)?\.weight|lora_embedding_[AB](\.\w+)?)")
_ELSEWHERE = "Merge the adapter with peft's merge_and_unload()"

_NO_EFFECT = frozenset(
    (
        *MAY_DIFFER,
        "peft_type",
        "lora_dropout",
        # peft ignores it for the layers of the supported models: linear ones store [out, in].
        "fan_in_fan_out",
        # The tensors tell which of the tied weights have an adapter.
        "ensure_weight_tying",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "loftq_config",
        "megatron_config",
        "megatron_core",
        "qalora_group_size",
        "runtime_config",
    )
)
"""peft settings that leave W + scale B A as it is, or that are read here; all others must have their default."""

_KEEP_THE_BASE = (True, "gaussian", "orthogonal", "eva", "mica")
"""Values of `init_lora_weights` that do not change the base's weights."""

_OWN_TENSORS = (
    "use_dora",
    "bias",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "kasa_config",
    "velora_config",
)
"""peft settings that add tensors of their own to the file."""

_WITHIN = {
    "rank_pattern": r"(.*\.)?(%s)$",
    "alpha_pattern": r"(.*\.)?(%s)$",
    "layers_pattern": r"(?:^|.*?\.)%s\.(?P<idx>\d+)\.",
}
"""Regular expressions that peft makes of a pattern; others are used as they are."""

_MOST_REPEATS = 6
"""Most repetitions in a pattern. A name has about 40 characters, so six take a second at most."""


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
    """The matrices A and B that a weight gets.

    Attributes:
        a: Name of A.
        b: Name of B.
        scale: Factor of B A.
        transposed: True for an embedding, whose weight is [vocabulary, width] with A [rank, vocabulary].
    """

    a: str
    b: str
    scale: float
    transposed: bool = False


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
    _require_mergeable(record, adapter.shapes, folder)
    require_base(folder, weights_checksum(base))
    weights = StoredWeights(base)
    products = _products(record, adapter.shapes, folder)
    whole = {plain: name for name in adapter.shapes if (plain := _plain_name(name)) in (EMBEDDING, HEAD)}
    used = {*whole.values(), *(part for product in products.values() for part in (product.a, product.b))}
    if unused := sorted(adapter.shapes.keys() - used):
        raise DataError(
            f"{folder / ADAPTER_WEIGHTS}: {unused[0]} is there under another name too. Keep one of them"
        )
    sources: dict[str, tuple[Weights, str]] = {name: (weights, name) for name in weights.shapes}
    config = read_object_file(base / "config.json")
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
                f"(tie_word_embeddings). {_ELSEWHERE}"
            )
        whole = {EMBEDDING: names[0]}
    sources |= {plain: (adapter, name) for plain, name in whole.items()}
    if untied and EMBEDDING in sources:
        sources[HEAD] = sources[EMBEDDING]
        config["tie_word_embeddings"] = False
    if EMBEDDING in whole:
        config["vocab_size"] = _rows(adapter, whole[EMBEDDING], folder)
    return MergedModel(MergedWeights(sources, adapter, products), config, untied)


def _require_mergeable(record: dict[str, Any], names: Collection[str], folder: Path) -> None:
    """Refuse tensors and settings that W + scale B A does not cover.

    Raises:
        DataError: There is one.
    """
    path = folder / ADAPTER_SETTINGS
    if record.get("peft_type") != "LORA":
        raise DataError(f"{path}: peft_type = {record.get('peft_type')!r} is not supported, expected 'LORA'")
    require_numbers(record, path)
    if not names:
        raise DataError(f"{folder / ADAPTER_WEIGHTS}: no tensors, expected lora_A and lora_B")
    # Modules that were trained whole have the names of a resized embedding and head.
    saved = () if record.get("modules_to_save") else (EMBEDDING, HEAD)
    others = sorted(name for name in names if not _MATRIX.fullmatch(name) and _plain_name(name) not in saved)
    if others:
        settings = [
            f"{key} = {value!r:.60}" for key in _OWN_TENSORS if (value := record.get(key)) and value != "none"
        ]
        because = f" ({', '.join(settings)})" if settings else ""
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise DataError(
            f"{folder / ADAPTER_WEIGHTS}: {others[0]}{more} cannot be merged here{because}. {_ELSEWHERE}"
        )
    defaults: dict[str, Any] = LoraConfig().to_dict()  # type: ignore[no-untyped-call]
    for key, value in record.items():
        if key == "init_lora_weights" and value and value not in _KEEP_THE_BASE:
            raise DataError(
                f"{path}: init_lora_weights = {value!r:.60} has changed the base's weights, so A and B do not belong to "
                "the base. Save the adapter with peft's path_initial_model_for_weight_conversion"
            )
        if value and value != defaults.get(key) and key not in _NO_EFFECT and key != "init_lora_weights":
            raise DataError(f"{path}: {key} = {value!r:.60} cannot be merged here. {_ELSEWHERE}")


def _products(
    record: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], folder: Path
) -> dict[str, Product]:
    """Return what is added to each weight, by name in the whole model.

    Raises:
        DataError: A matrix has no partner, belongs to no target, or has another rank than the settings say; a pattern
            cannot be read.
    """
    path, file = folder / ADAPTER_SETTINGS, folder / ADAPTER_WEIGHTS
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in record.get(key) or ():
            _require_quick(pattern, key, path)
    is_target = _target_check(record, path)
    products = {}
    for sides in ((_A, _B), (_EMBEDDING_A, _EMBEDDING_B)):
        for name, (a, b) in adapter_pairs(shapes, file, sides).items():
            module, transposed = name.removesuffix(".weight"), sides[0] == _EMBEDDING_A
            if transposed != (name == EMBEDDING):
                raise DataError(f"{file}: {a} is of the wrong kind. Only the embedding has lora_embedding_A")
            if not is_target(module):
                raise DataError(
                    f"{file}: {a} is of no target in {ADAPTER_SETTINGS}, so peft would leave it out. Add {module} to "
                    "target_modules, or remove the tensor"
                )
            expected = int(_of_module(record, "rank_pattern", module, record.get("r", 8)))
            if shapes[a][:1] != (expected,):
                raise DataError(f"{path}: says rank {expected} for {name}, but {a} is {list(shapes[a])}")
            alpha = float(_of_module(record, "alpha_pattern", module, record.get("lora_alpha", 8)))
            divisor = math.sqrt(expected) if record.get("use_rslora") else expected
            products[name] = Product(a, b, alpha / divisor, transposed)
    return products


def _of_module(record: Mapping[str, Any], key: str, module: str, default: float) -> float:
    """Return the value of the first pattern that matches the end of a module's name, like peft."""
    patterns: Mapping[str, float] = record.get(key) or {}
    return next(
        (value for pattern, value in patterns.items() if re.match(_WITHIN[key] % pattern, module)), default
    )


def _target_check(record: Mapping[str, Any], path: Path) -> Callable[[str], bool]:
    """Return a function that tells whether the settings give a module an adapter, like peft.

    Raises:
        DataError: peft cannot read the settings, or a regular expression may take too long.
    """
    settings = {
        key: record.get(key)
        for key in ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
    }
    targets = settings["target_modules"]
    for key in ("target_modules", "exclude_modules", "layers_pattern"):
        value = settings[key]
        parts = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(part, str) for part in parts):
            raise DataError(f"{path}: {key} = {value!r:.60}, expected names or a regular expression")
        # Lists hold names, but layers_pattern becomes part of a regular expression.
        if isinstance(value, str) or key == "layers_pattern":
            for part in parts:
                _require_quick(part, key, path)
    layers = settings["layers_to_transform"]
    if not all(isinstance(layer, int) for layer in (layers if isinstance(layers, list) else [layers or 0])):
        raise DataError(f"{path}: layers_to_transform = {layers!r:.60}, expected numbers of layers")
    every_linear = isinstance(targets, str) and targets.lower() == "all-linear"
    # Old adapters without targets have the default modules of their model's family.
    settings["target_modules"] = ".*" if every_linear or targets is None else targets
    try:
        config = LoraConfig(**settings)
    # Foreign files: peft may raise anything about settings.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: peft cannot read {', '.join(settings)} ({reason})") from error
    tied = bool(record.get("ensure_weight_tying"))

    def is_target(module: str) -> bool:
        if every_linear and f"{module}.weight" in (EMBEDDING, HEAD):
            return False
        # peft gives a tied head the embedding's adapter.
        return bool(check_target_module_exists(config, module)) or (tied and f"{module}.weight" == HEAD)

    return is_target


def _require_quick(pattern: str, key: str, path: Path) -> None:
    """Refuse what makes regular expressions take hours, since Python's have no limit of time.

    Raises:
        DataError: It repeats a group or much else, or is no regular expression.
    """
    try:
        re.compile(_WITHIN.get(key, "%s") % pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise DataError(f"{path}: {key}: {pattern[:MAX_ECHO]!r} is no regular expression ({error})") from None
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    if repeats > _MOST_REPEATS or re.search(r"\)\s*[*+{]|\s", pattern):
        raise DataError(
            f"{path}: {key}: {pattern[:MAX_ECHO]!r} may take too long, expected at most {_MOST_REPEATS} repetitions, none "
            f"of a group. {_ELSEWHERE}"
        )


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


def is_adapted(names: Iterable[str]) -> bool:
    """Return True if these are names of a model that peft has wrapped."""
    return any(_A in name for name in names)


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return the base's names in a model that peft has wrapped, by their names in the plain model."""
    return {_plain_name(name): name for name in names if _A not in name and _B not in name}


def _plain_name(name: str) -> str:
    return name.removeprefix(PREFIX).replace(_BASE, ".")


def adapter_pairs(
    names: Collection[str], path: Path, sides: tuple[str, str] = (_A, _B)
) -> dict[str, tuple[str, str]]:
    """Return the matrices A and B of each weight, by its name in the plain model.

    Args:
        names: Names of tensors.
        path: The prefix of messages.
        sides: What marks the names of A and of B.

    Raises:
        DataError: One of a pair is missing, or there is another one.
    """
    first, second = (dict(_by_weight(names, side, path)) for side in sides)
    if single := sorted(first.keys() ^ second.keys()):
        raise DataError(
            f"{path}: {single[0]} has one of {sides[0].strip('.')} and {sides[1].strip('.')} only"
        )
    return {weight: (name, second[weight]) for weight, name in first.items()}


def _by_weight(names: Collection[str], side: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the weight and the name of each matrix of one side."""
    known: dict[str, str] = {}
    for name in names:
        if side in name:
            weight = name.partition(side)[0].removeprefix(PREFIX) + ".weight"
            if weight in known:
                raise DataError(
                    f"{path}: {known[weight]} and {name} are for one weight. Keep the tensors of one adapter"
                )
            known[weight] = name
            yield weight, name
