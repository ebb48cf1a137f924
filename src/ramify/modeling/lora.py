"""LoRA (arXiv 2106.09685) through peft: small matrices beside frozen ones, saved as a peft folder.

A linear map with weight W [out, in] becomes W + (alpha / rank) B A, with A [rank, in] drawn and B [out, rank] zero at
first, so that a fresh adapter changes nothing. There is no dropout: a token that trajectories share is computed once.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from peft import LoraConfig
from peft.tuners import lora
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ramify.core.errors import ConfigError, DataError

Targets: TypeAlias = Literal["all-linear"] | tuple[str, ...]

_ADAPTER = "default"
_SETTINGS_FILE = "adapter_config.json"
_WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""What peft puts before the names of the base model's modules."""

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
"""Settings of peft that leave the sum W + scale B A what it is; any other must be at its default."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Which modules get an adapter, and how large.

    Attributes:
        rank: Columns of B.
        alpha: The product B A is multiplied by alpha / rank.
        targets: "all-linear" (all linear maps but the head), or names of modules such as "q_proj".
    """

    rank: int
    alpha: float
    targets: Targets = "all-linear"


def add_lora(model: PreTrainedModel, settings: LoraSettings, seed: int) -> None:
    """Put a fresh adapter into `model`, in place, and freeze everything else.

    A depends on `seed` and the shapes alone; the global random state is left as it was.

    Raises:
        ConfigError: The model has an adapter, or a target names no linear map or one of the embeddings.
    """
    if has_adapters(model):
        raise ConfigError(
            "model.lora: the model has an adapter already; leave the section out to train that one"
        )
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft divides it by the rank, fractions included
        target_modules=list(_target_names(model, settings.targets)),
        task_type="CAUSAL_LM",
    )
    _inject(model, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, layer in _layers(model):
            matrix = layer.lora_A[_ADAPTER].weight
            drawn = torch.empty(matrix.shape)
            # The bound 1 / sqrt(in) is that of a fresh torch.nn.Linear, as in the paper's own code.
            drawn.uniform_(
                -1 / math.sqrt(matrix.shape[1]), 1 / math.sqrt(matrix.shape[1]), generator=generator
            )
            matrix.copy_(drawn)
            layer.lora_B[_ADAPTER].weight.zero_()


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether `model` is a frozen base with an adapter."""
    return next(_layers(model), None) is not None


def adapter_settings(model: PreTrainedModel) -> LoraSettings | None:
    """Of the adapter that `model` has; its targets are spelt out. None without one."""
    if not has_adapters(model):
        return None
    config = _config(model)
    return LoraSettings(config.r, config.lora_alpha, tuple(sorted(config.target_modules or ())))


def spelt_out(model: PreTrainedModel, settings: LoraSettings) -> LoraSettings:
    """The same settings with "all-linear" replaced by the names that it stands for.

    Raises:
        ConfigError: A target names no linear map or one of the embeddings.
    """
    return LoraSettings(settings.rank, settings.alpha, _target_names(model, settings.targets))


@contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """Inside, `model` is its base: the reference model of a LoRA run.

    Raises:
        ValueError: The model has no adapter.
    """
    if not has_adapters(model):
        raise ValueError("the model has no adapter that could be off: its base is not kept")
    for _, layer in _layers(model):
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for _, layer in _layers(model):
            layer.enable_adapters(True)


def merged_weight(module: torch.nn.Module) -> torch.Tensor:
    """W + scale B A of a linear module as it is now, W itself where it has no adapter or it is off. [out, in]"""
    parts: Any = module
    base: torch.Tensor = parts.base_layer.weight if isinstance(module, lora.Linear) else parts.weight
    if not isinstance(module, lora.Linear) or module.disable_adapters:
        return base
    a, b = parts.lora_A[_ADAPTER].weight, parts.lora_B[_ADAPTER].weight
    merged = torch.addmm(base.float(), b.float(), a.float(), alpha=parts.scaling[_ADAPTER])
    return merged.to(base.dtype)


def linear_below(module: torch.nn.Module) -> torch.nn.Linear | None:
    """The plain linear map that `module` is, or that its adapter stands beside; None for anything else."""
    inner = module.base_layer if isinstance(module, lora.Linear) else module
    return inner if type(inner) is torch.nn.Linear else None


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder holds an adapter, not a whole model."""
    return (folder / _SETTINGS_FILE).is_file()


def base_folder(folder: Path) -> Path:
    """The model folder that an adapter belongs to.

    Raises:
        DataError: It is not there or is an adapter itself, or the adapter's settings cannot be read.
    """
    named = _read_settings(folder).get("base_model_name_or_path")
    place = folder / _SETTINGS_FILE
    if not isinstance(named, str) or not Path(named).is_dir():
        raise DataError(
            f"{place}: no model folder at base_model_name_or_path = {named!r}; set it to the base model's"
        )
    if is_adapter_folder(Path(named)):
        raise DataError(
            f"{place}: base_model_name_or_path = {named!r} is an adapter; name a whole model's folder"
        )
    return Path(named)


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write the adapter as a peft folder, which names the base model's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = _config(model).to_dict()  # type: ignore[no-untyped-call]
    # The order of a set differs from process to process.
    record = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
    record |= {"peft_type": "LORA", "inference_mode": True}
    (folder / _SETTINGS_FILE).write_text(json.dumps(record, indent=2, sort_keys=True), encoding="utf-8")
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in _tensors(model).items()},
        folder / _WEIGHTS_FILE,
        metadata={"format": "pt"},
    )
    (folder / _WEIGHTS_FILE).chmod((folder / _SETTINGS_FILE).stat().st_mode)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put the adapter of a peft folder into its base model, in place, ready to be trained.

    Raises:
        DataError: No plain LoRA adapter, or one of another model.
    """
    place = folder / _SETTINGS_FILE
    record = _read_settings(folder)
    _require_plain(record, place)
    try:
        _inject(model, LoraConfig(**{key: record[key] for key in _MAY_DIFFER if key in record}))
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{place}: does not fit the model at base_model_name_or_path ({reason})") from error
    weights = folder / _WEIGHTS_FILE
    if not weights.is_file():
        raise DataError(
            f"adapter folder {folder}: {_WEIGHTS_FILE} is missing; copy it from where it was trained"
        )
    try:
        saved = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{weights}: cannot be read ({' '.join(str(error).split())[:200]})") from error
    expected = _tensors(model)
    for name in sorted(saved.keys() | expected.keys()):
        shapes = [list(found[name].shape) if name in found else None for found in (saved, expected)]
        if shapes[0] != shapes[1]:
            raise DataError(
                f"{weights}: {name} is {shapes[0] or 'missing'}, the base model takes {shapes[1] or 'none'}; "
                f"set base_model_name_or_path in {_SETTINGS_FILE} to the model that the adapter was trained on"
            )
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(saved[name])


def _inject(model: PreTrainedModel, config: LoraConfig) -> None:
    # peft draws matrices of its own, which are overwritten.
    with torch.random.fork_rng(devices=[]):
        model.add_adapter(config, _ADAPTER)
    if config.target_parameters:
        raise ConfigError(
            f"model.lora.targets: {sorted(config.target_modules or ())} take in the routed experts, which are no linear "
            "maps; name modules of the attention only"
        )
    config.base_model_name_or_path = str(Path(model.name_or_path or ".").resolve())


def _config(model: PreTrainedModel) -> LoraConfig:
    config = model.peft_config[_ADAPTER]
    assert isinstance(config, LoraConfig)
    return config


def _layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, lora.Linear))


def _tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The adapter's matrices under the names of a peft file."""
    return {
        f"{_PREFIX}{name}.{part}.weight": getattr(layer, part)[_ADAPTER].weight
        for name, layer in _layers(model)
        for part in ("lora_A", "lora_B")
    }


def _target_names(model: PreTrainedModel, targets: Targets) -> tuple[str, ...]:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    linear = [name for name, m in model.named_modules() if linear_below(m) is not None and m is not head]
    # Modules inside a layer that has an adapter already belong to it.
    known = {name.rpartition(".")[2] for name in linear if ".lora_" not in name and ".base_layer" not in name}
    if targets == "all-linear":
        return tuple(sorted(known))
    for target in targets:
        if target not in known:
            raise ConfigError(
                f"model.lora.targets: {target!r} is no linear map inside the decoder, expected some of {sorted(known)}"
            )
    return tuple(sorted(set(targets)))


def _read_settings(folder: Path) -> dict[str, Any]:
    file = folder / _SETTINGS_FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{file}: expected a JSON object")
    return record


def _require_plain(record: dict[str, Any], place: Path) -> None:
    if record.get("peft_type") != "LORA":
        raise DataError(f"{place}: peft_type = {record.get('peft_type')!r} is not supported, expected 'LORA'")
    if not isinstance(record.get("target_modules"), list):
        raise DataError(f"{place}: expected target_modules to be a list of names")
    defaults: dict[str, Any] = LoraConfig().to_dict()  # type: ignore[no-untyped-call]
    for key, value in record.items():
        # How an adapter was drawn does not matter once it is saved, unless drawing it changed the base.
        drawn = key == "init_lora_weights" and value in (True, False, "gaussian", "orthogonal")
        if value and value != defaults.get(key) and key not in (*_MAY_DIFFER, "peft_type") and not drawn:
            raise DataError(
                f"{place}: {key} = {value!r} is not supported, expected plain LoRA without dropout"
            )
