"""The output head, only where a token was written, in chunks: log-probabilities and entropies in at least float32.

At most [chunk_tokens, V] logits exist at a time; a processor works on them in parts that fit into its cache. The
backward pass computes them again, unless all tokens fit into one chunk, whose probabilities are then kept.
"""

from collections.abc import Iterator
from typing import Any

import torch

_CACHED_LOGITS = 1 << 20


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
    targets [W] -> logprobs [W], entropies [W] or None; nats; float64 for weights in float64, else float32.
    """
    logprobs, entropies = _WrittenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, with_entropy, chunk_tokens
    )
    return logprobs, entropies


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
        size, precision = len(targets), torch.promote_types(weight.dtype, torch.float32)
        part_tokens = _part_tokens(weight, chunk_tokens)
        logprobs, normalizers = torch.empty(2, size, dtype=precision, device=hidden.device)
        entropies = torch.empty_like(logprobs) if with_entropy else None
        keep = size <= chunk_tokens and any(ctx.needs_input_grad[:2])
        kept = logprobs.new_empty(size, weight.shape[0]) if keep else None
        room = logprobs.new_empty(min(part_tokens, size), weight.shape[0])
        for part in _parts(size, part_tokens):
            logits = _logits(room, hidden[part], weight, temperature)
            largest = logits.amax(1, keepdim=True)
            logits -= largest
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0]
            terms = torch.exp(logits, out=None if kept is None else kept[part])
            total = terms.sum(1)
            if entropies is not None:
                entropies[part] = total.log() - logits.mul_(terms).sum(1) / total
            logprobs[part] -= total.log()
            normalizers[part] = total.log() + largest[:, 0]
            if kept is not None:
                terms /= total[:, None]
        ctx.save_for_backward(hidden, weight, targets, entropies, normalizers, kept)
        ctx.temperature, ctx.part_tokens = temperature, part_tokens
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grads: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, entropies, normalizers, kept = ctx.saved_tensors
        grad_logprobs, grad_entropies = grads
        size = len(targets)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=normalizers.dtype) if ctx.needs_input_grad[1] else None
        room = normalizers.new_empty(min(ctx.part_tokens, size), weight.shape[0]) if kept is None else None
        for part in _parts(size, ctx.part_tokens):
            if room is None:
                probs = kept[part]
            else:
                probs = _logits(room, hidden[part], weight, ctx.temperature)
                probs = probs.sub_(normalizers[part, None]).exp_()
            slope = _slope(
                probs,
                targets[part],
                None if grad_logprobs is None else grad_logprobs[part, None] / ctx.temperature,
                None if grad_entropies is None else grad_entropies[part, None] / ctx.temperature,
                None if entropies is None else entropies[part, None],
            ).to(weight.dtype)
            grad_hidden[part] = slope @ weight
            if grad_weight is not None:
                grad_weight += slope.T @ hidden[part]
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None,
            None,
            None,
            None,
        )


def _part_tokens(weight: torch.Tensor, chunk_tokens: int) -> int:
    """Tokens worked on at a time: on a processor no more than its cache holds the logits of."""
    if weight.device.type != "cpu":
        return chunk_tokens
    return min(chunk_tokens, max(_CACHED_LOGITS // len(weight), 32))


def _parts(size: int, part_tokens: int) -> Iterator[slice]:
    return (slice(start, min(start + part_tokens, size)) for start in range(0, size, part_tokens))


def _logits(
    room: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, temperature: float
) -> torch.Tensor:
    """hidden @ weight.T / temperature, written into `room`. [P, V]"""
    logits = room[: len(hidden)]
    if weight.dtype == room.dtype:
        torch.mm(hidden, weight.T, out=logits)
    else:
        logits.copy_(hidden @ weight.T)
    if temperature != 1.0:
        logits /= temperature
    return logits


def _slope(
    probs: torch.Tensor,
    targets: torch.Tensor,
    grad_logprobs: torch.Tensor | None,
    grad_entropies: torch.Tensor | None,
    entropies: torch.Tensor | None,
) -> torch.Tensor:
    """Gradient of the logits, in place of `probs`. [P, V], all others [P, 1] but targets [P]

    d logprob / d logit_v = (v is the target) - p_v; d entropy / d logit_v = -p_v (ln p_v + entropy).
    """
    if grad_entropies is not None:
        assert entropies is not None
        extra = torch.xlogy(probs, probs).addcmul_(probs, entropies).mul_(-grad_entropies)
        probs = extra if grad_logprobs is None else extra.addcmul_(probs, -grad_logprobs)
    else:
        assert grad_logprobs is not None
        probs *= -grad_logprobs
    if grad_logprobs is not None:
        probs.scatter_add_(1, targets[:, None], grad_logprobs)
    return probs
