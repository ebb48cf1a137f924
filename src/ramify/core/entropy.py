"""Entropy brackets from the most likely tokens, for engines that do not show the whole distribution."""

import math
from collections.abc import Sequence

from ramify.core.tree import Entropy


def top_k_bracket(logprobs: Sequence[float], vocab_size: int) -> Entropy:
    """Bounds of the entropy of one token's distribution of which the K most likely tokens are known.

    With q the probability of the rest: at least, the rest is as concentrated as it can be (tokens of the K-th
    probability each, what remains on one more); at most, it is spread evenly over the other V - K tokens,
    -q ln(q / (V - K)).

    Args:
        logprobs: Of the K most likely tokens, nats, in any order; K >= 1.
        vocab_size: V.

    Raises:
        ValueError: No logprob, or more than V.
    """
    if not 1 <= len(logprobs) <= vocab_size:
        raise ValueError(f"{len(logprobs)} logprobs for a vocabulary of {vocab_size}")
    # Rounding in an engine can leave a certain token a little above probability 1.
    known = [min(1.0, math.exp(value)) for value in logprobs]
    head = math.fsum(_term(p) for p in known)
    rest = max(0.0, 1.0 - math.fsum(known))
    others = vocab_size - len(known)
    if not rest or not others:
        return Entropy(head, head)
    least = min(known)
    full = min(int(rest / least), others) if least > 0 else 0
    lower = head + full * _term(least) + _term(max(0.0, rest - full * least))
    upper = head - rest * math.log(rest / others)
    return Entropy(min(lower, upper), upper)


def _term(p: float) -> float:
    return -p * math.log(p) if p > 0 else 0.0
