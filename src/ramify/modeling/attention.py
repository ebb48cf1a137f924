"""ramify's attention function, registered with transformers under the name "ramify".

The caller of a model passes a plan that computes attention: `model.model(..., use_cache=False, attention_plan=plan)`.
The learner's plan handles packed trees, the engine's plan handles slots. Without a plan attention is causal, as in any
other model.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION_NAME = "ramify"


class AttentionPlan(Protocol):
    """Computes the attention of a layer for the tokens of one forward pass."""

    def __call__(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Shapes: query [B, Hq, T, D], key and value [B, Hkv, T, D] -> [B, T, Hq, D]; Hq is a multiple of Hkv.

        With a window, a token attends to itself and to the `window - 1` tokens before it on its path.
        """
        ...


def grouped_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Scaled dot-product attention with groups of query heads that share a key and value head.

    Shapes: query [B, Hq, T, D], key and value [B, Hkv, S, D], mask broadcastable to [B, Hq, T, S] (boolean: True
    attends; float: added) -> [B, Hq, T, D].
    """
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    """Compute causal attention of the last Q <= R tokens of a sequence. [B, Hq, Q, D], [B, Hkv, R, D] -> [B, Hq, Q, D]"""
    num_queries, num_keys = query.shape[2], key.shape[2]
    is_wide = window is None or window >= num_keys
    if num_queries == num_keys and is_wide:
        return grouped_sdpa(query, key, value, scaling, causal=True)
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
    mask = mask.tril(num_keys - num_queries)
    if window is not None and not is_wide:
        mask = mask.triu(num_keys - num_queries - window + 1)
    return grouped_sdpa(query, key, value, scaling, mask)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _attention_mask: torch.Tensor | None,
    scaling: float,
    sliding_window: int | None = None,
    attention_plan: AttentionPlan | None = None,
    **_unused: object,
) -> tuple[torch.Tensor, None]:
    if attention_plan is None:
        return causal_attention(query, key, value, scaling, sliding_window).transpose(1, 2), None
    layer_index = module.layer_idx
    assert isinstance(layer_index, int)
    return attention_plan(layer_index, query, key, value, scaling, sliding_window), None


def _no_mask(attention_mask: torch.Tensor | None = None, **_unused: object) -> None:
    """Make no mask, because plans need none; refuse a padding mask, which would be ignored silently."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("a padding mask has no effect on ramify attention: pass sequences of one length")


def register_attention() -> None:
    """Register the name with transformers; repeated calls change nothing."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, _no_mask)


register_attention()
