"""Reads and checks `config.json` of a model folder (for an adapter's, that of its base), and knows the sizes of published models.

Loads neither torch nor transformers, so that a wrong folder is reported before anything heavy is imported.
"""

import math
import re
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError, MachineError
from ramify.core.json_text import parse_object
from ramify.files.untrusted import read_small_file
from ramify.modeling.model_path import is_hub_id, local_folder

SLOT_FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "ministral3", "smollm3", "seed_oss")
"""Families that the local engine computes, unless the configuration has a sliding window."""

PACKING_FAMILIES = (*SLOT_FAMILIES, "olmo3", "gemma3_text", "gemma4_text")
"""Families whose trees are packed: each layer attends, to all tokens before or to a window of them."""

ROW_FAMILIES = ("qwen3_next",)
"""Families with linear attention, which need a row for each context of a trajectory."""

WRAPPERS = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}
"""Models that also read pictures, and the family of their text decoder, which is what is trained."""

FAMILIES = (*PACKING_FAMILIES, *ROW_FAMILIES, *WRAPPERS)
"""Every `model_type` that can be trained."""

_OF_THE_WHOLE = (
    *("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"),
    *("quantization_config", "compression_config", "transformers_weights"),
)
"""Keys beside `text_config` that say something about the text decoder too."""

OMITTED = {
    "gemma3_text": {
        **{"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        "max_position_embeddings": 131_072,
    },
    "gemma4_text": {
        **{"vocab_size": 262_144, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        "max_position_embeddings": 131_072,
    },
}
"""transformers' defaults, which the published wrappers omit."""

SUPPORTED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angle depends only on the position."""

ADAPTER_SETTINGS = "adapter_config.json"
"""A folder with this file is an adapter's."""

ADAPTER_WEIGHTS = "adapter_model.safetensors"

TRAINED_PROMPTS = "trained_prompts.json"
"""Beside the weights: under which prompts and tools they were trained (`runs.trained_prompts`)."""

_SIZES = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 1000,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
    "max_position_embeddings": 1 << 30,
}
"""Upper bounds of sizes, which are integers from 1."""
_DERIVED = ("num_key_value_heads", "head_dim")

_QUANTIZED = ("quantization_config", "compression_config")


def is_adapter_folder(folder: Path) -> bool:
    """Return True if a folder contains an adapter and not a whole model."""
    return (folder / ADAPTER_SETTINGS).is_file()


def read_object_file(file: Path) -> dict[str, Any]:
    """Return the JSON object of a file in a model folder.

    Raises:
        DataError: The file is missing, is a folder, cannot be read, or is not a JSON object.
    """
    if not file.exists():
        raise DataError(f"{file} is missing, expected a file with a JSON object")
    if file.is_dir():
        raise DataError(f"{file} is a folder, expected a file with a JSON object")
    try:
        return parse_object(read_small_file(file))
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None


def whole_folder(folder: Path) -> Path:
    """Return the folder of the whole model: `folder` itself, or the base that an adapter names, a folder or an id of the hub.

    Raises:
        DataError: The folder is missing, the adapter's settings cannot be read, or its base is missing or an adapter.
    """
    if folder.is_file():
        raise DataError(f"{folder} is a file, expected a model folder")
    if not folder.is_dir():
        raise DataError(
            f"model folder {folder}: no such folder. Correct the path, or fetch a model with ramify model fetch."
        )
    if not is_adapter_folder(folder):
        return folder
    path = folder / ADAPTER_SETTINGS
    named = read_object_file(path).get("base_model_name_or_path")
    base = _base_folder(named) if isinstance(named, str) and named else None
    if base is None:
        raise DataError(
            f"{path}: no model folder at base_model_name_or_path = {named!r:.200}: put the base model there, or a link to "
            "it (ln -s), or a model of the hub into its cache; a copy of the adapter without state.json may name its new "
            "place instead"
        )
    if is_adapter_folder(base):
        raise DataError(
            f"{path}: base_model_name_or_path = {named!r} is an adapter. Name a whole model's folder"
        )
    return base


def _base_folder(name: str) -> Path | None:
    """Return the folder of a base model: one here, or that of an id of the hub in its cache."""
    path = Path(name)
    try:
        if path.is_dir():
            return path
        return local_folder(path) if is_hub_id(path) else None
    except (OSError, ValueError, MachineError):  # too long, with a null character, or not in the cache
        return None


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` of a model folder, or of an adapter's base, without loading the model; of a wrapper its text decoder's part.

    Raises:
        DataError: The folder or the file is missing, or the file is not a JSON object.
    """
    path = whole_folder(folder) / "config.json"
    return text_config(read_object_file(path), f"{path}")


def text_config(config: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the values of the text decoder: those of a wrapper's `text_config`, of any other model all of them.

    Raises:
        DataError: A wrapper has no such part, or that of another family.
    """
    family = WRAPPERS.get(config["model_type"]) if isinstance(config.get("model_type"), str) else None
    if family is None:
        return config
    part = config.get("text_config")
    if not isinstance(part, dict) or part.get("model_type", family) != family:
        raise DataError(
            f"{source}: text_config = {_shown(part)}, expected an object of model_type {family!r}"
        )
    shared = {key: config[key] for key in _OF_THE_WHOLE if key in config}
    return {**OMITTED[family], **part, **shared, "model_type": family}


def check_architecture(config: dict[str, Any], source: str) -> bool:
    """Refuse models that ramify cannot compute exactly, and impossible sizes; `source` is the prefix of the message.

    Returns:
        Whether trees can be packed; otherwise each context of a trajectory needs its own row.

    Raises:
        DataError: Family, kind of layer, activation or rotary embedding is not supported; the model has capped scores,
            bidirectional attention, dropout, a router loss or quantised weights; a number is invalid.
    """
    whole, config = config, text_config(config, source)
    if whole.get("model_type") == "gemma3" and config.get("final_logit_softcapping") is not None:
        raise DataError(
            f"{source}: final_logit_softcapping = {_shown(config['final_logit_softcapping'])}, expected null (of a Gemma 3 that "
            "reads pictures transformers ignores it, and vLLM does not)"
        )
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise DataError(f"{source}: model_type {_shown(family)} is not supported, expected one of {FAMILIES}")
    _check_numbers(config, source)
    layer_types = config.get("layer_types")
    if not isinstance(layer_types, list | None):
        raise DataError(f"{source}: layer_types = {_shown(layer_types)}, expected a list")
    kinds = {str(kind) for kind in layer_types or ()} - {"full_attention", "sliding_attention"}
    if kinds and not (family == "qwen3_next" and kinds == {"linear_attention"}):
        raise DataError(f"{source}: layers of kind {sorted(kinds)} are not supported in {family}")
    if family in SLOT_FAMILIES and config.get("hidden_act", "silu") != "silu":
        raise DataError(
            f"{source}: hidden_act = {_shown(config['hidden_act'])} is not supported, expected 'silu'"
        )
    _check_rotation(config, source)
    _check_growth(config, source)
    _check_switches(config, source)
    return family in PACKING_FAMILIES


def fits_slots(config: Any) -> bool:  # noqa: ANN401 - transformers' configuration
    """Return True if the local engine computes models of this configuration: all layers attend to all tokens before."""
    if config.model_type not in SLOT_FAMILIES:
        return False
    # Some families have a window in every layer, others where the layer's kind says so.
    kinds = getattr(config, "layer_types", None)
    return "sliding_attention" not in (kinds or ()) and not (
        kinds is None and getattr(config, "sliding_window", None)
    )


def _check_numbers(config: dict[str, Any], source: str) -> None:
    for key, most in _SIZES.items():
        value = config.get(key)
        if key not in config or (value is None and key in _DERIVED):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise DataError(f"{source}: {key} = {_shown(value)}, expected a whole number from 1 to {most:,}")
    epsilon = config.get("rms_norm_eps", 1e-6)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise DataError(f"{source}: rms_norm_eps = {_shown(epsilon)}, expected a number above 0 and below 1")
    vocab_size = config.get("vocab_size", _SIZES["vocab_size"])
    padding = config.get("pad_token_id")
    if isinstance(padding, int) and padding >= vocab_size:
        raise DataError(f"{source}: pad_token_id = {padding}, expected an id below vocab_size = {vocab_size}")
    ends = config.get("eos_token_id")
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None and (
            isinstance(end, bool) or not isinstance(end, int) or not 0 <= end < vocab_size
        ):
            raise DataError(
                f"{source}: eos_token_id = {_shown(ends)}, expected ids from 0 to {vocab_size - 1} (vocab_size - 1)"
            )


def _check_rotation(config: dict[str, Any], source: str) -> None:
    _check_base(config, source, "")
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise DataError(f"{source}: {key} = {_shown(rope)}, expected an object")
        # Families with several kinds of layers have an object for each kind.
        for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
            kind = part.get("rope_type", part.get("type", "default"))
            is_own = kind == "proportional" and config["model_type"] == "gemma4_text"
            if kind not in SUPPORTED_ROTATIONS and not is_own:
                raise DataError(
                    f"{source}: {key} of type {_shown(kind)} is not supported, expected one of {SUPPORTED_ROTATIONS} "
                    "(its angles depend on the length of the pass, not only on the position)"
                )
            _check_base(part, source, f"{key}.")


def _check_growth(config: dict[str, Any], source: str) -> None:
    """Check the numbers by which Ministral 3's queries grow with the place; transformers has defaults for all or none."""
    rope = config.get("rope_parameters")
    if config.get("model_type") != "ministral3" or not isinstance(rope, dict):
        return
    for key in ("llama_4_scaling_beta", "original_max_position_embeddings"):
        value = rope.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1 << 30:
            raise DataError(f"{source}: rope_parameters.{key} = {_shown(value)}, expected a number above 0")


def _check_base(rope: dict[str, Any], source: str, prefix: str) -> None:
    for key in ("rope_theta", "rope_local_base_freq", "factor"):
        value = rope.get(key)
        if value is None:
            continue
        # With a base of 1 all dimensions rotate alike, below 1 in reverse; a factor below 1 shortens the context.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            not is_number
            or not math.isfinite(value)
            or not 1 <= value <= 1e12
            or (key != "factor" and value == 1)
        ):
            raise DataError(
                f"{source}: {prefix}{key} = {_shown(value)}, expected a number above 1 and up to 1e12"
            )


def _check_switches(config: dict[str, Any], source: str) -> None:
    for key in _QUANTIZED:
        if config.get(key) is not None:
            raise DataError(
                f"{source}: {key} = {_shown(config[key])}: quantised weights cannot be trained or compared, expected a model "
                "in float32, bfloat16 or float16"
            )
    if config.get("transformers_weights") is not None:
        raise DataError(
            f"{source}: transformers_weights = {_shown(config['transformers_weights'])}, expected none (weights come from "
            "model.safetensors, or from the files that model.safetensors.index.json names)"
        )
    # transformers omits defaults; Seed-OSS's are 0.1.
    omitted = dict.fromkeys(("attention_dropout", "residual_dropout"), 0.1)
    for key, value in {**(omitted if config.get("model_type") == "seed_oss" else {}), **config}.items():
        if "dropout" in key and value not in (0, None):
            raise DataError(
                f"{source}: {key} = {_shown(value)}, expected 0 (dropout breaks the sharing of prefix tokens)"
            )
        if key.endswith("logit_softcapping") and value is not None:
            _check_cap(config, source, key)
    # Only pictures see what comes behind them, and none is read here.
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise DataError(
            f"{source}: use_bidirectional_attention = {_shown(config['use_bidirectional_attention'])}, expected a model with "
            "causal attention"
        )
    if config.get("enable_moe_block"):
        raise DataError(
            f"{source}: enable_moe_block = true: Gemma 4 is supported without routed experts only"
        )
    if config.get("output_router_logits"):
        raise DataError(f"{source}: output_router_logits = true, expected false (that loss is not computed)")


def _check_cap(config: dict[str, Any], source: str, key: str) -> None:
    """Allow a cap on the head's logits in families whose head computes it."""
    value = config[key]
    if key != "final_logit_softcapping" or config["model_type"] not in WRAPPERS.values():
        raise DataError(
            f"{source}: {key} = {_shown(value)}, expected null (this family is computed without caps)"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
        raise DataError(
            f"{source}: {key} = {_shown(value)}, expected a number above 0 and up to 1e6, or null"
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
)
PUBLISHED: dict[str, tuple[str, tuple[int | bool, ...]]] = {
    "Qwen2.5-0.5B": ("qwen2", (896, 24, 14, 2, 64, 4864, 151_936, True)),
    "Qwen2.5-1.5B": ("qwen2", (1536, 28, 12, 2, 128, 8960, 151_936, True)),
    "Qwen2.5-3B": ("qwen2", (2048, 36, 16, 2, 128, 11_008, 151_936, True)),
    "Qwen2.5-7B": ("qwen2", (3584, 28, 28, 4, 128, 18_944, 152_064, False)),
    "Qwen2.5-14B": ("qwen2", (5120, 48, 40, 8, 128, 13_824, 152_064, False)),
    "Qwen2.5-32B": ("qwen2", (5120, 64, 40, 8, 128, 27_648, 152_064, False)),
    "QwQ-32B": ("qwen2", (5120, 64, 40, 8, 128, 27_648, 152_064, False)),
    "Qwen3-0.6B": ("qwen3", (1024, 28, 16, 8, 128, 3072, 151_936, True)),
    "Qwen3-1.7B": ("qwen3", (2048, 28, 16, 8, 128, 6144, 151_936, True)),
    "Qwen3-4B": ("qwen3", (2560, 36, 32, 8, 128, 9728, 151_936, True)),
    "Qwen3-8B": ("qwen3", (4096, 36, 32, 8, 128, 12_288, 151_936, False)),
    "Qwen3-14B": ("qwen3", (5120, 40, 40, 8, 128, 17_408, 151_936, False)),
    "Qwen3-32B": ("qwen3", (5120, 64, 64, 8, 128, 25_600, 151_936, False)),
    "Llama-3.1-8B": ("llama", (4096, 32, 32, 8, 128, 14_336, 128_256, False)),
    "SmolLM2-135M": ("llama", (576, 30, 9, 3, 64, 1536, 49_152, True)),
    "SmolLM2-360M": ("llama", (960, 32, 15, 5, 64, 2560, 49_152, True)),
}
_VARIANT = re.compile(r"-(?:instruct|base|preview)(?:-\w+)?$", re.IGNORECASE)


def published_config(name: str) -> dict[str, Any] | None:
    """Return the sizes of a published model under the names of `config.json`; None if it is not among those known here.

    Args:
        name: Of a model or its folder, such as "Qwen/Qwen2.5-7B-Instruct" or "models/Qwen2.5-7B-Instruct".
    """
    base = _VARIANT.sub("", name.rstrip("/").rpartition("/")[2].partition("@")[0])
    match = next((known for known in PUBLISHED if known.lower() == base.lower()), None)
    if match is None:
        return None
    family, values = PUBLISHED[match]
    return {"model_type": family, "hidden_act": "silu", **dict(zip(_KEYS, values, strict=True))}
