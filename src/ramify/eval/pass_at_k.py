"""pass@k without bias, from n independent samples of each problem."""

from collections.abc import Sequence

from ramify.core.tree import Tree


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chance that at least one of k samples, drawn without replacement from n with c correct, is correct.

    1 - C(n - c, k) / C(n, k), as a product that neither overflows nor cancels (Chen et al. 2021,
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


def tree_pass_at_k(tree: Tree, correct: Sequence[bool], k: int) -> float:
    """pass@k of one problem from its group; `correct` is in the order of `tree.trajectories`.

    Raises:
        ValueError: The tree branches below its root, so that its leaves are not independent samples.
    """
    for node in tree.nodes:
        if node.parent is not None and len(tree.children[node.id]) > 1:
            raise ValueError(
                f"problem {tree.problem.id!r}: pass@k needs independent samples, but node {node.id!r} branches"
            )
    if len(correct) != len(tree.trajectories):
        raise ValueError(
            f"problem {tree.problem.id!r}: {len(tree.trajectories)} leaves, {len(correct)} verdicts"
        )
    return pass_at_k(len(correct), sum(correct), k)
