"""What is known about a distribution from the logprobs that an engine reports."""

import math
from collections.abc import Sequence

from ramify.core.tree import Entropy

TOLERANCE, TOLERANCE_16_BITS = 1e-3, 1.0
"""Largest difference of a token's logprob from another exact pass, nats, in float32 and 16 bits (docs/numerics.md, 7)."""


def top_k_bracket(logprobs: Sequence[float], vocab_size: int) -> Entropy:
    """Return bounds of the entropy (nats) of a distribution over V tokens of which only the K most likely are known.

    Let q be the probability of all other tokens. For the lower bound q is as concentrated as possible: as many
    tokens as fit with the K-th probability, the remainder on one more. For the upper bound q is spread evenly
    over the other V - K tokens, which adds -q ln(q / (V - K)).

    Args:
        logprobs: Logprobs of the K most likely tokens, nats, in any order; K >= 1.
        vocab_size: V.

    Raises:
        ValueError: There are no logprobs, or more than V.
    """
    if not 1 <= len(logprobs) <= vocab_size:
        raise ValueError(f"{len(logprobs)} logprobs for a vocabulary of {vocab_size}")
    # Rounding in an engine can give a token of probability 1 a little more than that.
    known = [min(1.0, math.exp(value)) for value in logprobs]
    head = math.fsum(_term(p) for p in known)
    remainder = max(0.0, 1.0 - math.fsum(known))
    others = vocab_size - len(known)
    if not remainder or not others:
        return Entropy(head, head)
    least = min(known)
    full = min(int(remainder / least), others) if least > 0 else 0
    lower = head + full * _term(least) + _term(max(0.0, remainder - full * least))
    upper = head - remainder * math.log(remainder / others)
    return Entropy(min(lower, upper), upper)


def _term(p: float) -> float:
    return -p * math.log(p) if p > 0 else 0.0
