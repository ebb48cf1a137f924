"""Open and write model folders in the Hugging Face layout.

Only dense decoders with full attention in every layer and no dropout are accepted: packed trees compute a
shared token once, which is exact only when its hidden state is the same on every trajectory.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ramify.core.errors import DataError
from ramify.modeling.attention import ATTENTION_NAME

SUPPORTED_FAMILIES = ("qwen2", "qwen3", "llama")
SUPPORTED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angle depends on the position alone."""

disable_progress_bar()  # type: ignore[no-untyped-call]  # the command line draws its own

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` of a model folder without loading the model.

    Raises:
        DataError: The folder or the file is missing, or the file is no JSON object.
    """
    file = folder / "config.json"
    if not folder.is_dir():
        raise DataError(f"model folder {folder}: no such folder")
    if not file.is_file():
        raise DataError(f"model folder {folder}: config.json is missing")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise DataError(f"{file}: expected a JSON object")
    return config


def check_architecture(config: dict[str, Any], place: str) -> None:
    """Refuse models that packed trees cannot be exact for; `place` begins the message.

    Raises:
        DataError: Unsupported family, activation or rotary embedding, sliding-window or linear attention, or dropout
            above zero.
    """
    family = config.get("model_type")
    if family not in SUPPORTED_FAMILIES:
        raise DataError(
            f"{place}: model_type {family!r} is not supported, expected one of {SUPPORTED_FAMILIES}"
        )
    kinds = {str(kind) for kind in config.get("layer_types") or ()} - {"full_attention"}
    if config.get("use_sliding_window"):
        kinds.add("sliding_attention")
    if kinds:
        raise DataError(f"{place}: layers of kind {sorted(kinds)} are not supported, expected full_attention")
    if config.get("hidden_act", "silu") != "silu":
        raise DataError(f"{place}: hidden_act = {config['hidden_act']!r} is not supported, expected 'silu'")
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in SUPPORTED_ROTATIONS:
            raise DataError(
                f"{place}: {key} of type {kind!r} is not supported, expected one of {SUPPORTED_ROTATIONS} "
                "(its angles depend on what else is in a pass)"
            )
    for key, value in config.items():
        if "dropout" in key and isinstance(value, int | float) and value > 0:
            raise DataError(
                f"{place}: {key} = {value}, expected 0 (dropout breaks the sharing of prefix tokens)"
            )


def load_model(path: str | Path, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """Load a causal language model with ramify's attention, in training mode.

    Raises:
        DataError: Missing folder, configuration or weights; unknown dtype; unsupported architecture.
    """
    folder = Path(path)
    check_architecture(read_model_config(folder), f"{folder / 'config.json'}")
    if dtype not in _DTYPES:
        raise DataError(f"model dtype {dtype!r} is unknown, expected one of {sorted(_DTYPES)}")
    if not any(folder.glob("*.safetensors")):
        raise DataError(f"model folder {folder}: no weights (*.safetensors)")
    auto: Any = AutoModelForCausalLM
    try:
        model, report = auto.from_pretrained(
            folder,
            dtype=_DTYPES[dtype],
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"model folder {folder}: the model cannot be read ({reason})") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise DataError(f"model folder {folder}: {len(missing)} weights are missing, first {missing[0]!r}")
    loaded: PreTrainedModel = model.train().to(torch.device(device))
    return loaded


def save_model(model: PreTrainedModel, folder: str | Path) -> None:
    """Write a plain Hugging Face folder (safetensors) that opens anywhere without ramify."""
    model.save_pretrained(folder)
    # Weights come out readable by their owner alone, unlike every other file.
    mode = (Path(folder) / "config.json").stat().st_mode
    for weights in Path(folder).glob("*.safetensors"):
        weights.chmod(mode)
