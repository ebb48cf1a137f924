"""The output head, only where a token was written, in chunks: log-probabilities and entropies in at least float32.

One [chunk_tokens, V] block of logits exists at a time. The backward pass computes the blocks again, unless all
tokens fit into one, which is then kept.
"""

from collections.abc import Iterator
from typing import Any

import torch


def written_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    with_entropy: bool,
    chunk_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each target, and entropy of its distribution, under softmax(logits / temperature).

    Both carry gradients to `hidden` and `weight`. Shapes: hidden [W, H] (the states that predict), weight [V, H],
    targets [W] -> logprobs [W], entropies [W] or None; nats; float64 for states in float64, else float32.
    """
    logprobs, entropies = _WrittenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, with_entropy, chunk_tokens
    )
    return logprobs, entropies


def _chunks(size: int, chunk_tokens: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk_tokens, size)) for start in range(0, size, chunk_tokens))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _log_softmax(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = (hidden @ weight.T).to(_wide(hidden.dtype))
    if temperature != 1.0:
        logits /= temperature
    return torch.log_softmax(logits, -1)


class _WrittenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool,
        chunk_tokens: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        size = targets.shape[0]
        logprobs = torch.empty(size, dtype=_wide(hidden.dtype), device=hidden.device)
        entropies = torch.empty_like(logprobs) if with_entropy else None
        block = None
        for chunk in _chunks(size, chunk_tokens):
            block = _log_softmax(hidden[chunk], weight, temperature)
            logprobs[chunk] = block.gather(1, targets[chunk, None])[:, 0]
            if entropies is not None:
                entropies[chunk] = -torch.linalg.vecdot(block.exp(), block)
        ctx.save_for_backward(hidden, weight, targets, entropies, block if size <= chunk_tokens else None)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grads: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, entropies, kept = ctx.saved_tensors
        grad_logprobs, grad_entropies = grads
        grad_hidden, grad_weight = (
            torch.empty_like(hidden),
            torch.zeros_like(weight, dtype=_wide(weight.dtype)),
        )
        for chunk in _chunks(targets.shape[0], ctx.chunk_tokens):
            block = _log_softmax(hidden[chunk], weight, ctx.temperature) if kept is None else kept
            probs = block.exp()
            slope = torch.zeros_like(probs)
            if grad_logprobs is not None:
                slope = probs * -grad_logprobs[chunk, None]
                slope.scatter_add_(1, targets[chunk, None], grad_logprobs[chunk, None])
            if grad_entropies is not None:
                slope -= probs * (block + entropies[chunk, None]) * grad_entropies[chunk, None]
            if ctx.temperature != 1.0:
                slope /= ctx.temperature
            slope = slope.to(weight.dtype)
            grad_hidden[chunk] = slope @ weight
            grad_weight += slope.T @ hidden[chunk]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None
