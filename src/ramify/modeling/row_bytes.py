"""Estimates the memory of a row from the sizes in a model's configuration; loads no library."""

from typing import Any

CACHED_LOGITS = 1 << 20
"""Logits that the head computes at a time on a CPU, so that they stay in its caches."""

_HEAD_TOKENS = 1024
"""Tokens whose logits the head may hold at once."""

_WIDE = 4
"""Bytes of a float32; norms compute in float32 for any dtype of the model."""

_LEAN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_NORMS = {"gemma3_text": 4}
"""Norms per layer, in families that do not have two."""


def activation_bytes(
    config: Any,  # noqa: ANN401 - transformers' configuration, or its values under the same names
    tokens: int,
    size: int,
    device_type: str = "cpu",
) -> int:
    """Estimate the peak memory of forward and backward of one row, in bytes, beyond weights and gradients.

    Without recomputation. It counts the activations that each layer of a dense decoder saves (attention saves no
    scores), the copies of keys and queries that a packed tree makes, and the head. For linear attention and routed
    experts it is a guess.

    Args:
        config: The model's configuration.
        tokens: Unique tokens of the row.
        size: Bytes per element of the activations.
        device_type: Device; on a CPU the head works in parts that fit into its cache.
    """
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    # A norm saves its input in float32, the normalised values and, for the matrix product after it, the scaled values;
    # in `lean_layers` only its input.
    is_lean = config.model_type in _LEAN_FAMILIES
    norm = config.hidden_size * (max(size, _WIDE) + 2 * size)
    norms = 2 * size * config.hidden_size if is_lean else _NORMS.get(config.model_type, 2) * norm
    # Queries, output, and output in the row's order; keys and values, and their copies gathered with the ancestors'.
    attention = size * (3 * queries + 6 * keys)
    if config.model_type in ("qwen3", "qwen3_next", "gemma3_text"):
        attention += (size if is_lean else max(size, _WIDE) + size) * (queries + keys)
    # With silu what `lean_layers` saves, otherwise what autograd saves.
    mlp = (2 if getattr(config, "hidden_act", None) == "silu" else 4) * size * _mlp_width(config)
    per_token: int = config.num_hidden_layers * (norms + attention + mlp) + norm
    return tokens * per_token + _head_bytes(config, tokens, size, device_type)


def _head_bytes(config: Any, tokens: int, size: int, device_type: str) -> int:  # noqa: ANN401 - as above
    """Memory of blocks of logits, and of temporary copies of the head weight's gradient."""
    # Logits, probabilities, and a gradient if the loss needs entropies or another dtype. On a CPU blocks are small.
    at_once = _HEAD_TOKENS if device_type != "cpu" else max(CACHED_LOGITS // config.vocab_size, 1)
    blocks = 3 * min(tokens, at_once)
    # The embedding's gradient, and for a 16-bit dtype the head's, summed in float32.
    copies = config.hidden_size * (1 if size >= _WIDE else 2)
    rows: int = blocks + copies
    return rows * max(size, _WIDE) * int(config.vocab_size)


def _mlp_width(config: Any) -> int:  # noqa: ANN401 - as above
    if getattr(config, "num_experts", 0):
        routed: int = config.num_experts_per_tok * config.moe_intermediate_size
        return routed + int(getattr(config, "shared_expert_intermediate_size", 0))
    width: int = config.intermediate_size
    return width
