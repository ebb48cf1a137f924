"""Sizes of published models, from their `config.json`: so that memory can be planned where neither model nor hub is at hand."""

import re
from typing import Any

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
