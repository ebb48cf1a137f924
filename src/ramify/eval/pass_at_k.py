"""Unbiased pass@k from n independent samples of a problem."""


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that at least one of k samples, drawn without replacement from n with c correct, is correct.

    1 - C(n - c, k) / C(n, k), computed as a product without overflow or cancellation (Chen et al. 2021,
    arXiv 2107.03374, equation 1).

    Raises:
        ValueError: Not 1 <= k <= n, or not 0 <= c <= n.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} needs at least {max(k, 1)} samples a problem and k >= 1; got {num_samples}"
        )
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct of {num_samples} samples")
    all_wrong = 1.0
    for drawn in range(k):
        all_wrong *= max(num_samples - num_correct - drawn, 0) / (num_samples - drawn)
    return 1.0 - all_wrong
