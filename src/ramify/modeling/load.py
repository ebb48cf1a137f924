"""Open and write model folders in the Hugging Face layout, whole models and LoRA adapters.

A packed tree computes a shared token once, which is exact only when its hidden state is the same on every trajectory.
Dense decoders with full attention in every layer are opened with ramify's attention and take packed trees. Models with
sliding windows or linear attention keep transformers' own and take a row for each context of a trajectory (`packs_trees`).
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ramify.core.errors import DataError
from ramify.modeling.adapter_files import base_folder, load_adapter, save_adapter
from ramify.modeling.attention import ATTENTION_NAME
from ramify.modeling.lean_layers import keep_less
from ramify.modeling.lora import has_adapters, is_adapter_folder

PACKING_FAMILIES = ("qwen2", "qwen3", "llama", "mistral")
"""Trees are packed, unless the configuration asks for a sliding window."""

ROW_FAMILIES = ("gemma3_text", "qwen3_next")
"""A row for each context of a trajectory: sliding windows or linear attention are part of the family."""

SUPPORTED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angle depends on the position alone."""

disable_progress_bar()  # type: ignore[no-untyped-call]  # the command line draws its own

_SHARD = "5GB"
"""Largest file of weights: a model on a GPU is copied to the CPU by so much at a time."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` of a model folder, or of an adapter's base, without loading the model.

    Raises:
        DataError: The folder or the file is missing, or the file is no JSON object.
    """
    if not folder.is_dir():
        raise DataError(f"model folder {folder}: no such folder")
    if is_adapter_folder(folder):
        folder = base_folder(folder)
    file = folder / "config.json"
    if not file.is_file():
        raise DataError(f"model folder {folder}: config.json is missing")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise DataError(f"{file}: expected a JSON object")
    return config


def check_architecture(config: dict[str, Any], place: str) -> bool:
    """Refuse models that rows cannot be exact for; `place` begins the message.

    Returns:
        Whether trees can be packed; otherwise each trajectory needs a row of its own.

    Raises:
        DataError: Unsupported family, kind of layer, activation or rotary embedding; capped logits, attention to later
            tokens, dropout above zero, or a loss of routed experts.
    """
    family = config.get("model_type")
    if family not in PACKING_FAMILIES + ROW_FAMILIES:
        raise DataError(
            f"{place}: model_type {family!r} is not supported, expected one of {PACKING_FAMILIES + ROW_FAMILIES}"
        )
    kinds = {str(kind) for kind in config.get("layer_types") or ()} - {"full_attention", "sliding_attention"}
    if kinds and not (family == "qwen3_next" and kinds == {"linear_attention"}):
        raise DataError(f"{place}: layers of kind {sorted(kinds)} are not supported in {family}")
    if family in PACKING_FAMILIES and config.get("hidden_act", "silu") != "silu":
        raise DataError(f"{place}: hidden_act = {config['hidden_act']!r} is not supported, expected 'silu'")
    _check_rotation(config, place)
    _check_switches(config, place)
    return family in PACKING_FAMILIES and not _has_windows(config)


def _has_windows(config: dict[str, Any]) -> bool:
    if config.get("model_type") == "mistral":
        # Transformers leaves out what is its default, here a window of 4096.
        return config.get("sliding_window", 4096) is not None
    return bool(config.get("use_sliding_window")) or "sliding_attention" in (config.get("layer_types") or ())


def _check_rotation(config: dict[str, Any], place: str) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        # One for each kind of layer, in families that have several.
        for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
            kind = part.get("rope_type", part.get("type", "default"))
            if kind not in SUPPORTED_ROTATIONS:
                raise DataError(
                    f"{place}: {key} of type {kind!r} is not supported, expected one of {SUPPORTED_ROTATIONS} "
                    "(its angles depend on what else is in a pass)"
                )


def _check_switches(config: dict[str, Any], place: str) -> None:
    for key, value in config.items():
        if "dropout" in key and isinstance(value, int | float) and value > 0:
            raise DataError(
                f"{place}: {key} = {value}, expected 0 (dropout breaks the sharing of prefix tokens)"
            )
        if key.endswith("logit_softcapping") and value is not None:
            raise DataError(f"{place}: {key} = {value}, expected null (the head computes plain logits)")
    if config.get("use_bidirectional_attention"):
        raise DataError(f"{place}: use_bidirectional_attention = true, expected a model of causal attention")
    if config.get("output_router_logits"):
        raise DataError(f"{place}: output_router_logits = true, expected false (that loss is not computed)")


def packs_trees(model: PreTrainedModel) -> bool:
    """Whether `model` takes attention plans, so that a row may hold trees; else a row is one trajectory."""
    name: str = model.config._attn_implementation
    return name == ATTENTION_NAME


def load_model(path: str | Path, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """Load a causal language model in training mode; of an adapter's folder, its frozen base with the adapter.

    Raises:
        DataError: Missing folder, configuration or weights; unknown dtype; unsupported architecture; an adapter
            whose base model is missing or another.
    """
    folder = Path(path)
    config = read_model_config(folder)
    if is_adapter_folder(folder):
        model = _load_whole(base_folder(folder), config, dtype)
        load_adapter(model, folder)
    else:
        model = _load_whole(folder, config, dtype)
    placed: PreTrainedModel = model.train().to(torch.device(device))
    return placed


def _load_whole(folder: Path, config: dict[str, Any], dtype: str) -> PreTrainedModel:
    packs = check_architecture(config, f"{folder / 'config.json'}")
    if dtype not in _DTYPES:
        raise DataError(f"model dtype {dtype!r} is unknown, expected one of {sorted(_DTYPES)}")
    if not any(folder.glob("*.safetensors")):
        raise DataError(f"model folder {folder}: no weights (*.safetensors)")
    auto: Any = AutoModelForCausalLM
    try:
        model, report = auto.from_pretrained(
            folder,
            dtype=_DTYPES[dtype],
            attn_implementation=ATTENTION_NAME if packs else "sdpa",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"model folder {folder}: the model cannot be read ({reason})") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise DataError(f"model folder {folder}: {len(missing)} weights are missing, first {missing[0]!r}")
    loaded: PreTrainedModel = model
    keep_less(loaded)
    return loaded


def save_model(model: PreTrainedModel, folder: str | Path, *, weights: bool = True) -> None:
    """Write a plain Hugging Face folder, or of a model with an adapter a peft folder, that opens without ramify.

    `generation_config.json` is not written: transformers refuses to save many that it reads, and where there is none it
    takes what it needs from `config.json`.

    Args:
        model: What to write.
        folder: Where to.
        weights: False leaves the tensors out: everything else that can go wrong does.
    """
    place = Path(folder)
    if has_adapters(model):
        save_adapter(model, place, weights=weights)
        return
    generation = model.generation_config
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        model.save_pretrained(place, state_dict=None if weights else {}, max_shard_size=_SHARD)
    finally:
        model.generation_config = generation
    (place / "generation_config.json").unlink()
    # Weights come out readable by their owner alone, unlike every other file.
    mode = (place / "config.json").stat().st_mode
    for file in place.glob("*.safetensors"):
        file.chmod(mode)
