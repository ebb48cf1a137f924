"""LoRA (arXiv 2106.09685) through peft: small trainable matrices beside frozen ones, and the folders that hold them.

A linear layer with weight W [out, in] becomes W + (alpha / rank) B A. A [rank, in] is random and B [out, rank] is zero
at first, so that a fresh adapter changes nothing. There is no dropout, because a token that trajectories share is
computed once. On disk an adapter is a peft folder, which transformers, peft and vLLM load together with the base model:

    adapter_config.json            settings; `base_model_name_or_path` is the base model's folder
    adapter_model.safetensors      the matrices A and B
    base_weights.json              checksum of the base's weights; only ramify reads it
"""

import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ramify.core.errors import ConfigError, DataError
from ramify.modeling.configs import AdapterConfig, Targets
from ramify.modeling.model_config import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    is_adapter_folder,
    read_object_file,
    whole_folder,
)
from ramify.modeling.tensor_files import weights_checksum
from ramify.modeling.text_decoder import OTHER_PARTS, whole_model
from ramify.modeling.weight_files import WITHIN, stored_tensors

if TYPE_CHECKING:
    from peft import LoraConfig

_ADAPTER = "default"
PREFIX = "base_model.model."
"""peft's prefix of the base model's module names."""
_CHECKSUM_FILE = "base_weights.json"
_MAX_RANK = 1 << 16
MAY_DIFFER = (
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "r",
    "target_modules",
    "exclude_modules",
    "lora_alpha",
    "use_rslora",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
)
"""peft settings that may vary, because W + scale B A still holds; all others must have their default."""
_OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "gate_up_proj")
_EXPERTS_REFUSED = "the routed experts, which are not linear layers. Name modules of the attention only"
_MERGE_IT = "Merge the adapter into its base first (ramify merge lora)"


def add_lora(model: PreTrainedModel, settings: AdapterConfig, seed: int) -> None:
    """Add a fresh adapter to `model`, in place, and freeze everything else.

    A depends only on `seed` and the shapes; the global random state does not change.

    Raises:
        ConfigError: The model already has an adapter; a target is not a linear layer inside the decoder; the rank is
            above the smaller side of every target's matrix.
    """
    if has_adapters(model):
        raise ConfigError(
            "model.lora: the model has an adapter already. Remove the section to train that one"
        )
    from peft import LoraConfig

    targets = _target_names(model, settings.targets)
    _require_room(model, settings.rank, targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft divides it by the rank, fractions included
        target_modules=list(targets),
        task_type="CAUSAL_LM",
    )
    inject(model, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, layer in _layers(model):
            matrix = layer.lora_A[_ADAPTER].weight
            drawn = torch.empty(matrix.shape)
            # The bound 1 / sqrt(in) is that of torch.nn.Linear, as in the paper's code.
            drawn.uniform_(
                -1 / math.sqrt(matrix.shape[1]), 1 / math.sqrt(matrix.shape[1]), generator=generator
            )
            matrix.copy_(drawn)
            layer.lora_B[_ADAPTER].weight.zero_()


def has_adapters(model: PreTrainedModel) -> bool:
    """Return True if `model` is a frozen base with an adapter."""
    return next(_layers(model), None) is not None


def adapter_settings(model: PreTrainedModel) -> AdapterConfig | None:
    """Return the settings of `model`'s adapter, with targets as names; None if it has no adapter."""
    if not has_adapters(model):
        return None
    config = adapter_config(model)
    return AdapterConfig(
        rank=config.r, alpha=config.lora_alpha, targets=tuple(sorted(config.target_modules or ()))
    )


def spelt_out(model: PreTrainedModel, settings: AdapterConfig) -> AdapterConfig:
    """Return the same settings with "all-linear" replaced by the names of the layers.

    Raises:
        ConfigError: A target is not a linear layer inside the decoder.
    """
    return replace(settings, targets=_target_names(model, settings.targets))


@contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """Have `model` compute as its base while the block runs: the reference model of a LoRA run.

    Raises:
        ValueError: The model has no adapter.
    """
    if not has_adapters(model):
        raise ValueError("the model has no adapter to switch off, so it has no base to fall back on")
    for _, layer in _layers(model):
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for _, layer in _layers(model):
            layer.enable_adapters(True)


def merged_weight(module: torch.nn.Module) -> torch.Tensor:
    """Return the current W + scale B A of a linear layer; W itself if it has no adapter or the adapter is off. [out, in]"""
    parts: Any = module
    if not _has_adapter(module):
        plain: torch.Tensor = parts.weight
        return plain
    base: torch.Tensor = parts.base_layer.weight
    if parts.disable_adapters:
        return base
    a, b = parts.lora_A[_ADAPTER].weight, parts.lora_B[_ADAPTER].weight
    return merged(base, a, b, adapter_scaling(parts))


def merged(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scaling: float) -> torch.Tensor:
    """W + scaling B A, in the type of W. [out, in], [rank, in], [out, rank] -> [out, in]"""
    return torch.addmm(base.float(), b.float(), a.float(), alpha=scaling).to(base.dtype)


def adapted_parts() -> tuple[str, str, str]:
    """Return the names of W, A and B within a layer that has an adapter."""
    return "base_layer.weight", f"lora_A.{_ADAPTER}.weight", f"lora_B.{_ADAPTER}.weight"


def adapter_scaling(module: Any) -> float:  # noqa: ANN401 - peft's layer
    """Return the factor of B A in a layer that has an adapter."""
    return float(module.scaling[_ADAPTER])


def linear_below(module: torch.nn.Module) -> torch.nn.Linear | None:
    """Return the plain linear layer that `module` is, or that its adapter wraps; None for any other module."""
    parts: Any = module
    inner = parts.base_layer if _has_adapter(module) else module
    return inner if type(inner) is torch.nn.Linear else None


def _has_adapter(module: torch.nn.Module) -> bool:
    """Return True for a linear layer with an adapter; peft, which made it, is loaded then."""
    layers = sys.modules.get("peft.tuners.lora")
    return layers is not None and isinstance(module, layers.Linear)


def inject(model: PreTrainedModel, config: "LoraConfig") -> None:
    """Add adapter layers to `model` and freeze everything else; the caller fills their matrices.

    Raises:
        ConfigError: The targets include routed experts.
        ValueError: A target matches nothing in the model.
    """
    # peft initializes the matrices randomly; the caller overwrites them.
    with torch.random.fork_rng(devices=[]):
        model.add_adapter(config, _ADAPTER)
    if config.target_parameters:
        raise ConfigError(
            f"model.lora.targets: {sorted(config.target_modules or ())} include {_EXPERTS_REFUSED}"
        )
    base = Path(model.name_or_path or ".").resolve()
    config.base_model_name_or_path = str(base)
    # Take the checksum now: when the adapter is saved, the folder may contain other weights.
    holder: Any = model
    holder.base_checksum = weights_checksum(base)


def base_checksum(model: PreTrainedModel) -> str:
    """`weights_checksum` of the base weights that a model with an adapter was loaded from."""
    checksum: Any = model.base_checksum
    return str(checksum)


def adapter_config(model: PreTrainedModel) -> "LoraConfig":
    """Return peft's settings of `model`'s adapter."""
    from peft import LoraConfig

    config = model.peft_config[_ADAPTER]
    assert isinstance(config, LoraConfig)
    return config


def _layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if _has_adapter(module))


def adapter_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the adapter's matrices, by their names in a peft file; a text decoder's are named as in its whole model."""
    within = "model." if whole_model(model) is None else WITHIN
    return {
        f"{PREFIX}{name.replace('model.', within, 1)}.{part}.weight": getattr(layer, part)[_ADAPTER].weight
        for name, layer in _layers(model)
        for part in ("lora_A", "lora_B")
    }


def _target_names(model: PreTrainedModel, targets: Targets) -> tuple[str, ...]:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    linear = [name for name, m in model.named_modules() if linear_below(m) is not None and m is not head]
    # Skip the inner modules of adapter layers.
    known = {name.rpartition(".")[2] for name in linear if ".lora_" not in name and ".base_layer" not in name}
    if targets == "all-linear":
        return tuple(sorted(known))
    has_experts = any(name.endswith(".experts") for name, _ in model.named_modules())
    for target in targets:
        if target not in known and has_experts and target in _OF_EXPERTS:
            raise ConfigError(f"model.lora.targets: {target!r} is of {_EXPERTS_REFUSED}")
        if target not in known:
            raise ConfigError(
                f"model.lora.targets: {target!r} is not a linear layer inside the decoder, expected some of {sorted(known)}"
            )
    return tuple(sorted(set(targets)))


def _require_room(model: PreTrainedModel, rank: int, targets: Collection[str]) -> None:
    """Refuse a rank above the smaller side of every target, which would waste memory; above that of some is common."""
    sizes = {
        name.rpartition(".")[2]: (linear.out_features, linear.in_features)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in targets and (linear := linear_below(module)) is not None
    }
    name, size = max(sizes.items(), key=lambda item: min(item[1]))
    if rank > min(size):
        raise ConfigError(
            f"model.lora.rank: expected at most {min(size)}, the smaller side of the largest target, {name} "
            f"[{size[0]}, {size[1]}], got {rank}"
        )


def checksums(folder: Path) -> dict[str, str]:
    """Return `weights_checksum` of a model's folder ("model"), and of an adapter's base ("base").

    Raises:
        DataError: A file cannot be read.
    """
    own = {"model": weights_checksum(folder)}
    return {**own, "base": weights_checksum(whole_folder(folder))} if is_adapter_folder(folder) else own


def save_adapter(
    model: PreTrainedModel,
    folder: Path,
    *,
    weights: bool = True,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write the adapter as a peft folder that names the base model's folder; with `weights` off, without tensors.

    `tensors`, under their names in the file, replace those that the model holds now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = adapter_config(model).to_dict()  # type: ignore[no-untyped-call]
    # The iteration order of a set differs between processes.
    record = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
    record |= {"peft_type": "LORA", "inference_mode": True}
    if whole_model(model) is not None:
        record["exclude_modules"] = OTHER_PARTS
    (folder / ADAPTER_SETTINGS).write_text(json.dumps(record, indent=2, sort_keys=True), encoding="utf-8")
    (folder / _CHECKSUM_FILE).write_text(json.dumps({"crc32": base_checksum(model)}), encoding="utf-8")
    if not weights:
        return
    saved = adapter_tensors(model) if tensors is None else tensors
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in saved.items()},
        folder / ADAPTER_WEIGHTS,
        metadata={"format": "pt"},
    )
    (folder / ADAPTER_WEIGHTS).chmod((folder / ADAPTER_SETTINGS).stat().st_mode)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Load the adapter of a peft folder into its base model, in place and trainable.

    Raises:
        DataError: It is not a plain LoRA adapter, or it belongs to another base model (even one of the same shape).
    """
    from peft import LoraConfig

    path = folder / ADAPTER_SETTINGS
    record = read_adapter_settings(folder)
    if record.get("exclude_modules") == OTHER_PARTS:
        # Of the whole model; peft warns where there are none.
        del record["exclude_modules"]
    try:
        inject(model, LoraConfig(**{key: record[key] for key in MAY_DIFFER if key in record}))
    except ConfigError:
        raise
    # Foreign files: peft may raise anything about settings.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: does not fit the model at base_model_name_or_path ({reason})") from error
    if _has_adapter(model.get_output_embeddings()):  # type: ignore[no-untyped-call]
        raise DataError(
            f"{path}: target_modules include the head, expected linear layers inside the decoder. {_MERGE_IT}"
        )
    stored = stored_tensors(folder)
    weights = folder / ADAPTER_WEIGHTS
    expected = adapter_tensors(model)
    if embeddings := sorted(name for name in stored if ".lora_embedding_" in name):
        raise DataError(
            f"{weights}: {embeddings[0]} is of the embedding, expected linear layers. {_MERGE_IT}"
        )
    for name in sorted(stored.keys() | expected.keys()):
        shapes = [list(tensors[name].shape) if name in tensors else None for tensors in (stored, expected)]
        if shapes[0] != shapes[1]:
            raise DataError(
                f"{weights}: {name} is {shapes[0] or 'missing'}, the base model takes {shapes[1] or 'none'}. "
                f"Set base_model_name_or_path in {ADAPTER_SETTINGS} to the model that the adapter was trained on"
            )
    require_base(folder, base_checksum(model))
    saved = load_file(weights)
    with torch.no_grad():
        for name, tensor in expected.items():
            if not torch.isfinite(saved[name]).all():
                raise DataError(f"{weights}: {name} holds NaN or infinity, expected finite numbers")
            tensor.copy_(saved[name])


def read_adapter_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a peft folder.

    Raises:
        DataError: They cannot be read, or are not those of a plain LoRA adapter.
    """
    path = folder / ADAPTER_SETTINGS
    record = read_object_file(path)
    _require_plain(record, path)
    return record


def require_base(folder: Path, checksum: str) -> None:
    """Compare the base's checksum with the one saved with the adapter; adapters that peft wrote have none.

    Raises:
        DataError: They differ.
    """
    if not (folder / _CHECKSUM_FILE).is_file():
        return
    trained_on = read_object_file(folder / _CHECKSUM_FILE).get("crc32")
    if trained_on != checksum:
        named = read_object_file(folder / ADAPTER_SETTINGS)["base_model_name_or_path"]
        raise DataError(
            f"{folder}: trained on a base whose weights have checksum {trained_on}, those at base_model_name_or_path = "
            f"{named!r} have {checksum}. Put the model there that the adapter was trained on"
        )


def _require_plain(record: dict[str, Any], path: Path) -> None:
    from peft import LoraConfig

    if record.get("peft_type") != "LORA":
        raise DataError(f"{path}: peft_type = {record.get('peft_type')!r} is not supported, expected 'LORA'")
    if not isinstance(record.get("target_modules"), list):
        raise DataError(f"{path}: expected target_modules to be a list of names. {_MERGE_IT}")
    require_numbers(record, path)
    defaults: dict[str, Any] = LoraConfig().to_dict()  # type: ignore[no-untyped-call]
    for key, value in record.items():
        # The initialization of a saved adapter does not matter, unless it changed the base weights.
        drawn = key == "init_lora_weights" and value in (True, False, "gaussian", "orthogonal")
        if value and value != defaults.get(key) and key not in (*MAY_DIFFER, "peft_type") and not drawn:
            expected = f"plain LoRA without dropout. {_MERGE_IT}" if key == "lora_dropout" else "plain LoRA"
            raise DataError(f"{path}: {key} = {value!r} is not supported, expected {expected}")


def require_numbers(record: dict[str, Any], path: Path) -> None:
    """Check ranks, which cost memory, and alphas, of which NaN would make every output NaN.

    Raises:
        DataError: One of them is no number in its bounds, or a pattern is no object of them.
    """
    for key, pattern_key, low, high in (
        ("r", "rank_pattern", 1, _MAX_RANK),
        ("lora_alpha", "alpha_pattern", 1e-9, 1e6),
    ):
        pattern = record.get(pattern_key) or {}
        if not isinstance(pattern, dict):
            raise DataError(
                f"{path}: {pattern_key} = {pattern!r:.80}, expected an object of numbers by module"
            )
        of_modules = {f"{pattern_key}[{module!r:.80}]": value for module, value in pattern.items()}
        for name, value in {key: record.get(key, low), **of_modules}.items():
            kind = int if key == "r" else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                raise DataError(
                    f"{path}: {name} = {value!r:.80}, expected a number from {low:,} to {high:,.0f}"
                )
