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
    "max_position_embeddings",
)
_ROWS: dict[str, tuple[str, tuple[int | bool, ...]]] = {
    "Qwen2.5-0.5B": ("qwen2", (896, 24, 14, 2, 64, 4864, 151_936, True, 32_768)),
    "Qwen2.5-1.5B": ("qwen2", (1536, 28, 12, 2, 128, 8960, 151_936, True, 32_768)),
    "Qwen2.5-3B": ("qwen2", (2048, 36, 16, 2, 128, 11_008, 151_936, True, 32_768)),
    "Qwen2.5-7B": ("qwen2", (3584, 28, 28, 4, 128, 18_944, 152_064, False, 32_768)),
    "Qwen2.5-14B": ("qwen2", (5120, 48, 40, 8, 128, 13_824, 152_064, False, 32_768)),
    "Qwen2.5-32B": ("qwen2", (5120, 64, 40, 8, 128, 27_648, 152_064, False, 32_768)),
    "QwQ-32B": ("qwen2", (5120, 64, 40, 8, 128, 27_648, 152_064, False, 40_960)),
    "Qwen3-0.6B": ("qwen3", (1024, 28, 16, 8, 128, 3072, 151_936, True, 40_960)),
    "Qwen3-1.7B": ("qwen3", (2048, 28, 16, 8, 128, 6144, 151_936, True, 40_960)),
    "Qwen3-4B": ("qwen3", (2560, 36, 32, 8, 128, 9728, 151_936, True, 40_960)),
    "Qwen3-8B": ("qwen3", (4096, 36, 32, 8, 128, 12_288, 151_936, False, 40_960)),
    "Qwen3-14B": ("qwen3", (5120, 40, 40, 8, 128, 17_408, 151_936, False, 40_960)),
    "Qwen3-32B": ("qwen3", (5120, 64, 64, 8, 128, 25_600, 151_936, False, 40_960)),
    "Llama-3.1-8B": ("llama", (4096, 32, 32, 8, 128, 14_336, 128_256, False, 131_072)),
    "SmolLM2-135M": ("llama", (576, 30, 9, 3, 64, 1536, 49_152, True, 8192)),
    "SmolLM2-360M": ("llama", (960, 32, 15, 5, 64, 2560, 49_152, True, 8192)),
}
_VARIANT = re.compile(r"-(?:instruct|base|preview)(?:-\w+)?$", re.IGNORECASE)


def published_config(name: str) -> dict[str, Any] | None:
    """The sizes of a published model under the names of `config.json`; None if it is not among those known here.

    Args:
        name: Of a model or its folder, such as "Qwen/Qwen2.5-7B-Instruct" or "models/Qwen2.5-7B-Instruct".
    """
    last = _VARIANT.sub("", name.rstrip("/").rpartition("/")[2].partition("@")[0])
    found = next((row for known, row in _ROWS.items() if known.lower() == last.lower()), None)
    if found is None:
        return None
    family, values = found
    return {"model_type": family, "hidden_act": "silu", **dict(zip(_KEYS, values, strict=True))}


def published_names() -> tuple[str, ...]:
    """The models that are known here."""
    return tuple(_ROWS)


def dense_shapes(config: Any) -> dict[str, tuple[int, ...]]:  # noqa: ANN401 - the values of `config.json` as attributes
    """Shapes of the parameters of a dense Qwen2, Qwen3 or Llama, a tied head left out, from its configuration."""
    hidden, wide, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
    queries, keys = (
        heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
    )
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }
    if config.model_type == "qwen2":
        layer |= {
            f"self_attn.{name}_proj.bias": (size,)
            for name, size in zip("qkv", (queries, keys, keys), strict=True)
        }
    if config.model_type == "qwen3":
        layer |= {f"self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
    outside = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        outside["lm_head.weight"] = (vocabulary, hidden)
    layers = range(config.num_hidden_layers)
    return outside | {f"model.layers.{n}.{name}": shape for n in layers for name, shape in layer.items()}
