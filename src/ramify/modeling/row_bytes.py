"""Estimates the memory of a row from the sizes in a model's configuration; loads no library."""

from dataclasses import dataclass
from typing import Any, TypeAlias

Config: TypeAlias = Any
"""transformers' configuration of a model, or its values under the same names."""

CACHED_LOGITS = 1 << 20
"""Logits that the head computes at a time on a CPU, so that they stay in its caches."""

_HEAD_TOKENS = 1024
"""Tokens whose logits the head may hold at once."""

_WIDE = 4
"""Bytes of a float32; norms compute in float32 for any dtype of the model."""

_RECOMPUTED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_NORMS = {"gemma3_text": 4}
"""Norms per layer, in families that do not have two."""

SHARES = {"cuda": 0.8, "cpu": 0.6}
"""Of free memory that a row may take. A process on a CPU rose by up to 1.4 times the estimate: the allocator keeps
pieces that fit nothing, and other programs take memory too."""


@dataclass(frozen=True, slots=True)
class RowBytes:
    """What forward and backward of one row take above weights and gradients.

    Attributes:
        layers: What the layers keep for the backward pass.
        recomputed: The same where each layer keeps its input alone and is computed again in the backward pass.
        head: Blocks of logits, and copies of the head's gradient.
    """

    layers: int
    recomputed: int
    head: int

    @property
    def without_recompute(self) -> int:
        """Return the bytes of a row whose layers keep all their activations."""
        return self.layers + self.head


def row_bytes(
    config: Config, tokens: int, size: int, device_type: str = "cpu", *, adapter: bool = False
) -> RowBytes:
    """Estimate the most that one row takes.

    Without recomputation. It counts the activations that each layer of a dense decoder saves (attention saves no
    scores), the copies of keys and queries that a packed tree makes, and the head. For linear attention and routed
    experts it is a guess.

    Args:
        config: The model's configuration.
        tokens: Unique tokens of the row.
        size: Bytes per element of the activations.
        device_type: Device; on a CPU the head works in parts that fit into its cache.
        adapter: An adapter is trained, and neither head nor embedding.
    """
    last_norm = config.hidden_size * (max(size, _WIDE) + 2 * size)
    # In the backward pass of a layer, an adapter's scaled copies of gradients, and a second gradient of each input.
    copies = size * (4 * _mlp_width(config) + 2 * config.hidden_size) * adapter
    stored = config.num_hidden_layers * _layer(config, size) + last_norm + copies
    inputs = config.num_hidden_layers * size * config.hidden_size
    again = inputs + _layer(config, size, recomputed=True) + last_norm + copies
    head = _head_bytes(config, tokens, size, device_type, is_trained=not adapter)
    return RowBytes(tokens * stored, tokens * again, head)


def store_bytes(config: Config, slots: int, context: int, size: int) -> int:
    """The local engine's keys and values, of `slots` sequences of `context` tokens and the spare position."""
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * _head_dim(config) * size
    return int(per_token * slots * (context + 1))


def _head_dim(config: Config) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _layer(config: Config, size: int, *, recomputed: bool = False) -> int:
    """Bytes that one layer keeps for a token; one that is computed again keeps what autograd does."""
    queries = config.num_attention_heads * _head_dim(config)
    keys = config.num_key_value_heads * _head_dim(config)
    # A norm keeps its input in float32, the normalised values and, for the product behind it, the scaled ones; in
    # `recompute` the input alone.
    recomputes = config.model_type in _RECOMPUTED_FAMILIES and not recomputed
    norm = config.hidden_size * (max(size, _WIDE) + 2 * size)
    norms = 2 * size * config.hidden_size if recomputes else _NORMS.get(config.model_type, 2) * norm
    # Queries, output, and output in the row's order; keys and values, and their copies gathered with the ancestors'.
    attention = size * (3 * queries + 6 * keys)
    if config.model_type in ("qwen3", "qwen3_next", "gemma3_text"):
        attention += (size if recomputes else max(size, _WIDE) + size) * (queries + keys)
    # What `recompute` keeps, and for other activations what autograd does.
    is_silu = getattr(config, "hidden_act", None) == "silu"
    mlp = (2 if is_silu and not recomputed else 4) * size * _mlp_width(config)
    return int(norms + attention + mlp)


def _head_bytes(config: Config, tokens: int, size: int, device_type: str, *, is_trained: bool) -> int:
    """Memory of blocks of logits, and of temporary copies of the head weight's gradient."""
    # Logits, probabilities, and a gradient if the loss needs entropies or another dtype. On a CPU blocks are small.
    at_once = _HEAD_TOKENS if device_type != "cpu" else max(CACHED_LOGITS // config.vocab_size, 1)
    blocks = 3 * min(tokens, at_once)
    # The embedding's gradient, and for a 16-bit dtype the head's, summed in float32.
    copies = config.hidden_size * (1 if size >= _WIDE else 2) * is_trained
    rows: int = blocks + copies
    return rows * max(size, _WIDE) * int(config.vocab_size)


def _mlp_width(config: Config) -> int:
    if getattr(config, "num_experts", 0):
        routed: int = config.num_experts_per_tok * config.moe_intermediate_size
        return routed + int(getattr(config, "shared_expert_intermediate_size", 0))
    width: int = config.intermediate_size
    return width
