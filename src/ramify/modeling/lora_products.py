"""Which products of A and B a peft folder adds to which weights, and by what factor.

Every tensor of an adapter's file is merged or refused by its name. The file has A and B of linear layers, and those of
the embedding, whose product is transposed. Where the vocabulary was resized or the embedding has an adapter, peft also
writes the embedding and the head whole. Patterns in the settings mean what they mean in peft; settings that leave
W + scale B A as it is, such as dropout, are not looked at.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_ECHO
from ramify.modeling.lora import MAY_DIFFER, PREFIX, require_numbers
from ramify.modeling.model_config import ADAPTER_SETTINGS, ADAPTER_WEIGHTS

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

_BASE = ".base_layer."
_A, _B = ".lora_A.", ".lora_B."
_EMBEDDING_A, _EMBEDDING_B = ".lora_embedding_A", ".lora_embedding_B"
_MATRIX = re.compile(r".+\.(lora_[AB](\.\w+)?\.weight|lora_embedding_[AB](\.\w+)?)")
MERGE_ELSEWHERE = "Merge the adapter with peft's merge_and_unload()"

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


def require_mergeable(record: dict[str, Any], names: Collection[str], folder: Path) -> None:
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
    others = sorted(name for name in names if not _MATRIX.fullmatch(name) and plain_name(name) not in saved)
    if others:
        settings = [
            f"{key} = {value!r:.60}" for key in _OWN_TENSORS if (value := record.get(key)) and value != "none"
        ]
        because = f" ({', '.join(settings)})" if settings else ""
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise DataError(
            f"{folder / ADAPTER_WEIGHTS}: {others[0]}{more} cannot be merged here{because}. {MERGE_ELSEWHERE}"
        )
    defaults: dict[str, Any] = LoraConfig().to_dict()  # type: ignore[no-untyped-call]
    for key, value in record.items():
        if key == "init_lora_weights" and value and value not in _KEEP_THE_BASE:
            raise DataError(
                f"{path}: init_lora_weights = {value!r:.60} has changed the base's weights, so A and B do not belong to "
                "the base. Save the adapter with peft's path_initial_model_for_weight_conversion"
            )
        if value and value != defaults.get(key) and key not in _NO_EFFECT and key != "init_lora_weights":
            raise DataError(f"{path}: {key} = {value!r:.60} cannot be merged here. {MERGE_ELSEWHERE}")


def products_of(
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
    settings: dict[str, Any] = {
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
            f"of a group. {MERGE_ELSEWHERE}"
        )


def is_adapted(names: Iterable[str]) -> bool:
    """Return True if these are names of a model that peft has wrapped."""
    return any(_A in name for name in names)


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return the base's names in a model that peft has wrapped, by their names in the plain model."""
    return {plain_name(name): name for name in names if _A not in name and _B not in name}


def plain_name(name: str) -> str:
    """Return the name in the plain model of a weight in a model that peft has wrapped."""
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
