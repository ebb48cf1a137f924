"""One forward pass over a packed row."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ramify.core.errors import DataError
from ramify.core.records import PackedRow
from ramify.learner.tree_attention import TreeAttention
from ramify.modeling.attention import AttentionPlan
from ramify.modeling.head import written_logprobs
from ramify.modeling.load import packs_trees


def forward_row(
    model: PreTrainedModel,
    row: PackedRow,
    *,
    temperature: float,
    chunk_tokens: int,
    with_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities, and entropies on request, of the written tokens of a row. [W] each

    Args:
        model: Loaded by `ramify.modeling`.
        row: One tree or several; one context where the model's layers do not take an attention plan.
        temperature: Of the sampling distribution; logits are divided by it.
        chunk_tokens: Tokens whose logits exist at a time.
        with_entropy: Whether entropies are computed.

    Raises:
        DataError: A context of the row is longer than the model's.
    """
    length, limit = int(row.positions.max()) + 1, int(model.config.max_position_embeddings)
    if length > limit:
        raise DataError(
            f"a context of {length} tokens is longer than the model's {limit}: nothing was trained on it; "
            "lower data.max_tokens, or rollout.max_tokens and data.max_prompt_tokens"
        )
    device = model.device
    ids = torch.from_numpy(row.token_ids).to(device)
    plan = {}
    if packs_trees(model):
        plan["attention_plan"] = _attention(row, device, model.dtype)
    decoder: Callable[..., Any] = model.base_model
    hidden: torch.Tensor = decoder(
        input_ids=ids[None],
        position_ids=torch.from_numpy(row.positions).to(device)[None],
        use_cache=False,
        **plan,
    ).last_hidden_state[0]
    # An embedding look-up gathers rows with a fast backward pass, also where a row predicts many tokens.
    states = F.embedding(torch.from_numpy(row.predictor).to(device), hidden)
    targets = ids[torch.from_numpy(row.written).to(device)]
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    weight: torch.Tensor = head.weight
    return written_logprobs(states, weight, targets, temperature, with_entropy, chunk_tokens)


def _attention(row: PackedRow, device: torch.device, dtype: torch.dtype) -> AttentionPlan:
    if device.type != "cuda":
        return TreeAttention(row.segments, device, dtype)
    # Only a GPU pays for the import of torch's compiler.
    from ramify.learner.flex_attention import FlexTreeAttention

    return FlexTreeAttention(row.segments, device)
