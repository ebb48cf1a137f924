"""The output head, computed only at written tokens: logprobs, entropies and their log-sum-exp in at least float32.

At most [chunk_tokens, V] logits exist at a time; a CPU works on smaller parts that fit into its cache. For a loss that
is a sum over tokens, the gradient is computed while the logits of a part exist, so that logits are neither kept nor
recomputed.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from ramify.modeling.memory_plan import CACHED_LOGITS

PartLoss: TypeAlias = Callable[[slice, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""The loss of a part of the tokens: (slice of the part, logprobs [P], entropies [P] or None) -> scalar."""


@torch.no_grad()
def written_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    with_entropy: bool,
    chunk_tokens: int,
    *,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the logprob of each target, and entropy of its distribution, under softmax(logits / temperature); no gradient.

    With a cap, logits are cap tanh(logits / cap) first, as in Gemma. Shapes: hidden [W, H] (the hidden states that predict the targets), weight [V, H], targets [W] -> logprobs [W],
    entropies [W] or None. In nats; float64 for weights in float64, else float32.
    """
    hidden, weight = _multipliable(hidden), _multipliable(weight)
    size, part_tokens = len(targets), _part_tokens(weight, chunk_tokens)
    room = _room(weight, min(size, part_tokens))
    logprobs = room.new_empty(size)
    entropies = torch.empty_like(logprobs) if with_entropy else None
    for part in _parts(size, part_tokens):
        logits = _logits(room, hidden[part], weight, temperature, cap)
        logprobs[part], part_entropies = _normalize(logits, targets[part], with_entropy, None)
        if entropies is not None and part_entropies is not None:
            entropies[part] = part_entropies
    return logprobs, entropies


@torch.no_grad()
def written_backward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    with_entropy: bool,
    chunk_tokens: int,
    loss: PartLoss,
    weight_grad: torch.Tensor | None,
    *,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradient with respect to `hidden` of the sum of `loss` over parts of the tokens; logprobs; entropies.

    Shapes as in `written_logprobs`; the gradient is [W, H], of the type of `hidden`. The weight's gradient is added to
    `weight_grad` [V, H], which is float64 for weights in float64, else float32: so many small terms are not rounded to
    16 bits one by one. None: the weight is frozen.
    """
    grad_hidden = torch.empty_like(hidden)
    hidden, weight = _multipliable(hidden), _multipliable(weight)
    size, part_tokens = len(targets), _part_tokens(weight, chunk_tokens)
    room, spare = _room(weight, min(size, part_tokens)), _room(weight, min(size, part_tokens))
    logprobs = room.new_empty(size)
    entropies = torch.empty_like(logprobs) if with_entropy else None
    for part in _parts(size, part_tokens):
        logits = _logits(room, hidden[part], weight, temperature, cap)
        derivatives = None if cap is None else 1 - (logits * (temperature / cap)).square_()
        probs = spare[: len(logits)]
        logprobs[part], part_entropies = _normalize(logits, targets[part], with_entropy, probs)
        if entropies is not None and part_entropies is not None:
            entropies[part] = part_entropies
        loss_gradients = _loss_gradients(loss, part, logprobs[part], part_entropies)
        by_logits = _logit_gradients(probs, targets[part], *loss_gradients, part_entropies, temperature)
        exact = by_logits if derivatives is None else by_logits.mul_(derivatives)
        gradient = exact.to(weight.dtype)
        if grad_hidden.dtype == gradient.dtype:
            torch.mm(gradient, weight, out=grad_hidden[part])
        else:
            grad_hidden[part] = gradient @ weight
        if weight_grad is None:
            continue
        if weight.device.type == "cpu":
            # A CPU's product of 16 bits is rounded to 16 bits before it could be added.
            weight_grad.addmm_(exact.T, hidden[part].to(weight_grad.dtype))
        elif gradient.dtype == weight_grad.dtype:
            weight_grad.addmm_(gradient.T, hidden[part])
        else:
            weight_grad += torch.mm(gradient.T, hidden[part], out_dtype=weight_grad.dtype)
    return grad_hidden, logprobs, entropies


def _multipliable(matrix: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in float32 if they are in 16 bits on a CPU without fast products of such numbers."""
    if matrix.device.type != "cpu" or matrix.dtype.itemsize > 2:
        return matrix
    # Builds without oneDNN have no such operator.
    has_products = torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return matrix if has_products and matrix.dtype == torch.bfloat16 else matrix.float()


def _part_tokens(weight: torch.Tensor, chunk_tokens: int) -> int:
    """Return the number of tokens per part; on a CPU no more than fit into the cache with their logits."""
    if weight.device.type != "cpu":
        return chunk_tokens
    return min(chunk_tokens, max(CACHED_LOGITS // len(weight), 32))


def _parts(size: int, part_tokens: int) -> Iterator[slice]:
    return (slice(start, min(start + part_tokens, size)) for start in range(0, size, part_tokens))


def _room(weight: torch.Tensor, tokens: int) -> torch.Tensor:
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.empty(tokens, len(weight), dtype=dtype, device=weight.device)


def _logits(
    room: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, temperature: float, cap: float | None
) -> torch.Tensor:
    """hidden @ weight.T, capped, / temperature, written into `room`. [P, V]"""
    logits = room[: len(hidden)]
    if weight.dtype == room.dtype:
        torch.mm(hidden, weight.T, out=logits)
    elif weight.device.type == "cpu":
        # Rounded to 16 bits, as the engine's logits are on a CPU; sums over the vocabulary come after it, in float32.
        logits.copy_(torch.mm(hidden, weight.T))
    else:
        logits.copy_(torch.mm(hidden, weight.T, out_dtype=room.dtype))
    if cap is not None:
        logits.div_(cap).tanh_().mul_(cap)
    if temperature != 1.0:
        logits /= temperature
    return logits


def _normalize(
    logits: torch.Tensor, targets: torch.Tensor, with_entropy: bool, probs: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the logprobs of the targets and entropies, [P] each; writes probabilities into `probs`, and overwrites `logits`."""
    logits -= logits.amax(1, keepdim=True)
    chosen = logits.gather(1, targets[:, None])[:, 0]
    keep_logits = with_entropy or probs is not None
    terms = torch.exp(logits, out=probs) if keep_logits else logits.exp_()
    total = terms.sum(1)
    entropies = total.log() - logits.mul_(terms).sum(1) / total if with_entropy else None
    if probs is not None:
        probs /= total[:, None]
    return chosen - total.log(), entropies


def _loss_gradients(
    loss: PartLoss, part: slice, logprobs: torch.Tensor, entropies: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of a part's loss with respect to its logprobs and entropies; None where it does not depend on them."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (logprobs, entropies) if x is not None]
        value = loss(part, leaves[0], leaves[1] if entropies is not None else None)
        if not value.requires_grad:
            return None, None
        gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    return gradients[0], gradients[1] if entropies is not None else None


def _logit_gradients(
    probs: torch.Tensor,
    targets: torch.Tensor,
    by_logprobs: torch.Tensor | None,
    by_entropies: torch.Tensor | None,
    entropies: torch.Tensor | None,
    temperature: float,
) -> torch.Tensor:
    """Gradient with respect to the logits of a part; overwrites `probs`. [P, V]

    d logprob / d logit_v = (v is the target) - p_v; d entropy / d logit_v = -p_v (ln p_v + entropy).
    """
    first = torch.zeros_like(probs[:, 0]) if by_logprobs is None else by_logprobs / temperature
    if by_entropies is None:
        probs *= -first[:, None]
    else:
        assert entropies is not None
        extra = torch.xlogy(probs, probs).addcmul_(probs, entropies[:, None])
        extra *= by_entropies[:, None] / -temperature
        probs = extra.addcmul_(probs, -first[:, None])
    return probs.scatter_add_(1, targets[:, None], first[:, None])
