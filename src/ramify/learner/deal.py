"""Deals the rows of an optimizer step to the ranks, by what they cost in FLOPs.

Credit is additive, so any row may go to any rank. Largest first to the rank with the least; where one tree is more than a
rank's share, large trees are cut at branch points. A step takes as long as its slowest rank, so the cut with the smallest
largest share wins, or none. What pieces share is computed again and counted (`PackedRow.num_repeated`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.core.records import PackedRow
from ramify.modeling.memory_plan import head_dim, kv_heads, mlp_width

EVEN = 1.05
"""The largest share, over an equal share of the work without cuts, at which nothing is cut, or cut further."""

PARTS = (1, 2, 3, 5, 10, 20, 40, 80)
"""Trees are cut into pieces of at most a rank's mean number of tokens over one of these."""


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of a row, forward and backward, from the sizes of a dense decoder; a constant factor is left out.

    Attributes:
        token: Of a token's products with the layers' weights.
        written: Of a response token's logits.
        pair: Of a query with one key that it sees, over all layers.
    """

    token: float
    written: float
    pair: float

    @classmethod
    def of(cls, config: Any) -> "Cost":  # noqa: ANN401 - transformers' configuration
        """Return the costs for a model."""
        hidden, layers = config.hidden_size, config.num_hidden_layers
        heads = config.num_attention_heads
        size, shared = head_dim(config), kv_heads(config)
        attention = hidden * size * (2 * heads + 2 * shared)
        return cls(
            token=2.0 * layers * (attention + 3 * hidden * mlp_width(config)),
            written=2.0 * hidden * config.vocab_size,
            pair=4.0 * layers * heads * size,
        )

    def __call__(self, row: PackedRow) -> float:
        """Return the FLOPs of a row."""
        above = [0] * len(row.segments)
        pairs = 0.0
        for number, span in enumerate(row.segments):
            size = span.stop - span.start
            if span.parent >= 0:
                parent = row.segments[span.parent]
                above[number] = above[span.parent] + parent.stop - parent.start
            pairs += size * (above[number] + (size + 1) / 2)
        return self.token * len(row.token_ids) + self.written * len(row.written) + self.pair * pairs


@dataclass(frozen=True, slots=True)
class Shares:
    """The rows of each rank.

    Attributes:
        rows: For each rank its rows.
        unevenness: The largest share over an equal share of the work without cuts, in FLOPs.
    """

    rows: tuple[tuple[PackedRow, ...], ...]
    unevenness: float

    @property
    def passes(self) -> int:
        """Rows of the rank that has most."""
        return max(map(len, self.rows))

    @property
    def all_rows(self) -> tuple[PackedRow, ...]:
        """The rows of all ranks, rank by rank."""
        return tuple(row for rows in self.rows for row in rows)


def deal_rows(
    rows: Sequence[PackedRow],
    count: int,
    cost: Callable[[PackedRow], float],
    uncut: float | None = None,
) -> Shares:
    """Give each row to the rank with the least so far, the most expensive first; rows of a rank stay in their order.

    Args:
        rows: The rows.
        count: Number of ranks.
        cost: Return the FLOPs of a row.
        uncut: FLOPs of the same work without cuts; None: these rows are not cut.
    """
    if count == 1:
        return Shares((tuple(rows),), 1.0)
    costs = [cost(row) for row in rows]
    loads = [0.0] * count
    places: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(rows)), key=lambda n: (-costs[n], n)):
        rank = min(range(count), key=lambda r: (loads[r], r))
        places[rank].append(number)
        loads[rank] += costs[number]
    equal = (sum(costs) if uncut is None else uncut) / count
    dealt = tuple(tuple(rows[number] for number in sorted(mine)) for mine in places)
    return Shares(dealt, max(loads) / equal if equal else 1.0)


def deal_trees(
    rows_of: Callable[[int | None], Sequence[PackedRow]], count: int, cost: Callable[[PackedRow], float]
) -> Shares:
    """Deal rows of one tree each; where that is uneven, cut large trees if the largest share gets smaller by it.

    Args:
        rows_of: Return the rows, with trees cut into rows of at most this many tokens; None: whole.
        count: Number of ranks.
        cost: Return the FLOPs of a row.
    """
    whole = rows_of(None)
    best = deal_rows(whole, count, cost)
    if best.unevenness <= EVEN:
        return best
    uncut = sum(map(cost, whole))
    mean = sum(len(row.token_ids) for row in whole) // count
    for parts in PARTS:
        if best.unevenness <= EVEN or mean < parts:
            break
        rows = rows_of(mean // parts)
        # Finer cuts repeat more tokens: once an equal share of all that is computed is too large, so are all that follow.
        if sum(map(cost, rows)) >= best.unevenness * uncut:
            break
        best = min(best, deal_rows(rows, count, cost, uncut), key=lambda shares: shares.unevenness)
    return best
