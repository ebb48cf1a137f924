"""Floating-point operations of a pass over trees, counted from sizes; a backward pass takes twice a forward pass."""

from dataclasses import dataclass

from benchmarks.update.trees import TreeSizes


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a dense decoder: weights of all linear layers, width of all query heads, layers, hidden width, vocabulary."""

    linear: int
    queries: int
    layers: int
    hidden: int
    vocabulary: int

    def forward(self, tokens: int, pairs: int, head_tokens: int) -> int:
        """Two operations a weight and token, four a query element and (query, key) pair."""
        return (
            2 * self.linear * tokens
            + 4 * self.queries * self.layers * pairs
            + 2 * self.hidden * self.vocabulary * head_tokens
        )

    def packed(self, counts: TreeSizes) -> int:
        """Unique tokens, head on those that the policy wrote."""
        return self.forward(counts.unique, counts.unique_pairs, counts.unique_written)

    def separate(self, counts: TreeSizes) -> int:
        """Every trajectory alone and without padding, head on what the policy wrote."""
        return self.forward(counts.separate, counts.separate_pairs, counts.separate_written)

    def padded(self, counts: TreeSizes) -> int:
        """Trajectories padded to the longest of their tree, head on every position, causal attention."""
        return self.forward(counts.padded, counts.padded_pairs, counts.padded)

    def padded_compact(self, counts: TreeSizes) -> int:
        """The same with the head on tokens that are no padding and no prompt only, as TRL has it on a GPU."""
        return self.forward(counts.padded, counts.padded_pairs, counts.separate_completions)


def qwen2(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> Shape:
    """The shape of a Qwen2 model."""
    head = hidden // heads
    block = 2 * hidden * hidden + 2 * hidden * kv_heads * head + 3 * hidden * intermediate
    return Shape(layers * block, hidden, layers, hidden, vocabulary)


TINY = qwen2(hidden=256, intermediate=1024, layers=4, heads=4, kv_heads=2, vocabulary=8192)

_PEAK_FLOPS = {"H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Of dense bfloat16 products, by a part of the device's name; the first that fits."""


def peak_flops(device: str) -> float | None:
    """Dense bfloat16 operations a second of a GPU by its name; None for one that is not listed."""
    return next((flops for part, flops in _PEAK_FLOPS.items() if part in device), None)
