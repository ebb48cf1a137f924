"""Adapters on disk: peft folders, which transformers, peft and vLLM load together with the base model.

adapter_config.json            settings; `base_model_name_or_path` is the base model's folder
adapter_model.safetensors      the matrices A and B
base_weights.json              checksum of the base's weights; only ramify reads it
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ramify.core.errors import ConfigError, DataError
from ramify.modeling.lora import adapter_config, adapter_tensors, base_checksum, inject
from ramify.modeling.model_config import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    is_adapter_folder,
    read_object_file,
    whole_folder,
)
from ramify.modeling.weight_checksums import weights_checksum
from ramify.modeling.weight_files import stored_tensors

_CHECKSUM_FILE = "base_weights.json"

_MAX_RANK = 1 << 16

_MAY_DIFFER = (
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


def checksums(folder: Path) -> dict[str, str]:
    """`weights_checksum` of a model's folder ("model"); for an adapter also that of its base ("base").

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
    path = folder / ADAPTER_SETTINGS
    record = read_adapter_settings(folder)
    try:
        inject(model, LoraConfig(**{key: record[key] for key in _MAY_DIFFER if key in record}))
    except ConfigError:
        raise
    # Foreign files: peft may raise anything about settings.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: does not fit the model at base_model_name_or_path ({reason})") from error
    stored = stored_tensors(folder)
    weights = folder / ADAPTER_WEIGHTS
    expected = adapter_tensors(model)
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
    if record.get("peft_type") != "LORA":
        raise DataError(f"{path}: peft_type = {record.get('peft_type')!r} is not supported, expected 'LORA'")
    if not isinstance(record.get("target_modules"), list):
        raise DataError(f"{path}: expected target_modules to be a list of names")
    _require_numbers(record, path)
    defaults: dict[str, Any] = LoraConfig().to_dict()  # type: ignore[no-untyped-call]
    for key, value in record.items():
        # The initialization of a saved adapter does not matter, unless it changed the base weights.
        drawn = key == "init_lora_weights" and value in (True, False, "gaussian", "orthogonal")
        if value and value != defaults.get(key) and key not in (*_MAY_DIFFER, "peft_type") and not drawn:
            raise DataError(
                f"{path}: {key} = {value!r} is not supported, expected plain LoRA without dropout"
            )


def _require_numbers(record: dict[str, Any], path: Path) -> None:
    """Check ranks, which cost memory, and alphas, of which NaN would make every output NaN."""
    for key, low, high in (("r", 1, _MAX_RANK), ("lora_alpha", 1e-9, 1e6)):
        pattern = record.get({"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key]) or {}
        values = [record.get(key, low), *(pattern.values() if isinstance(pattern, dict) else [pattern])]
        for value in values:
            kind = int if key == "r" else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                raise DataError(
                    f"{path}: {key} = {value!r:.80}, expected a number from {low:,} to {high:,.0f}"
                )
