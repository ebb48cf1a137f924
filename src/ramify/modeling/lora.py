"""LoRA (arXiv 2106.09685) through peft: small trainable matrices beside frozen ones (`adapter_files` saves them).

A linear layer with weight W [out, in] becomes W + (alpha / rank) B A. A [rank, in] is random and B [out, rank] is zero
at first, so that a fresh adapter changes nothing. There is no dropout, because a token that trajectories share is
computed once.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners import lora
from transformers import PreTrainedModel

from ramify.core.errors import ConfigError
from ramify.modeling.configs import AdapterConfig, Targets
from ramify.modeling.weight_checksums import weights_checksum

_ADAPTER = "default"
PREFIX = "base_model.model."
"""peft's prefix of the base model's module names."""


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
    """Inside the block, `model` computes as its base: the reference model of a LoRA run.

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
    base: torch.Tensor = parts.base_layer.weight if isinstance(module, lora.Linear) else parts.weight
    if not isinstance(module, lora.Linear) or module.disable_adapters:
        return base
    a, b = parts.lora_A[_ADAPTER].weight, parts.lora_B[_ADAPTER].weight
    return merged(base, a, b, adapter_scaling(module))


def merged(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scaling: float) -> torch.Tensor:
    """W + scaling B A, in the type of W. [out, in], [rank, in], [out, rank] -> [out, in]"""
    return torch.addmm(base.float(), b.float(), a.float(), alpha=scaling).to(base.dtype)


def adapted_parts() -> tuple[str, str, str]:
    """Names of W, A and B within a layer that has an adapter."""
    return "base_layer.weight", f"lora_A.{_ADAPTER}.weight", f"lora_B.{_ADAPTER}.weight"


def adapter_scaling(module: Any) -> float:  # noqa: ANN401 - peft's layer
    """Return the factor of B A in a layer that has an adapter."""
    return float(module.scaling[_ADAPTER])


def linear_below(module: torch.nn.Module) -> torch.nn.Linear | None:
    """Return the plain linear layer that `module` is, or that its adapter wraps; None for any other module."""
    inner = module.base_layer if isinstance(module, lora.Linear) else module
    return inner if type(inner) is torch.nn.Linear else None


def inject(model: PreTrainedModel, config: LoraConfig) -> None:
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
            f"model.lora.targets: {sorted(config.target_modules or ())} include the routed experts, which are not linear "
            "layers. Name modules of the attention only"
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


def adapter_config(model: PreTrainedModel) -> LoraConfig:
    """peft's settings of `model`'s adapter."""
    config = model.peft_config[_ADAPTER]
    assert isinstance(config, LoraConfig)
    return config


def _layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, lora.Linear))


def adapter_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the adapter's matrices, by their names in a peft file."""
    return {
        f"{PREFIX}{name}.{part}.weight": getattr(layer, part)[_ADAPTER].weight
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
    for target in targets:
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
