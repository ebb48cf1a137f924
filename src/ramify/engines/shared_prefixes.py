"""Finds decode rows that begin with the same tokens, so that the shared keys are read from one of them only.

A decode step has one query per row and many keys, so its cost is the number of keys that it reads.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_WORTH = 1000
"""How many keys a shared prefix must save to be worth its own calls."""

_DEEPEST = 100
"""Deepest nesting of prefixes within prefixes that is searched."""


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Rows `start..stop-1` (in the order of the step) share their first `prefix` tokens."""

    start: int
    stop: int
    prefix: int


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The rows that feed one token each, in the order of the step. Valid as long as the set of rows does not change.

    Attributes:
        rows: Their indices in the table. [B]
        groups: Slices of `rows`; a row is in at most one of them.
    """

    rows: npt.NDArray[np.int64]
    groups: tuple[PrefixGroup, ...]


def group_rows(
    rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> DecodeRows:
    """Order `rows` so that rows with a long common prefix are neighbours; depends only on the tokens that they hold.

    Args:
        rows: Rows of the decoding sequences. [B]
        tokens: Tokens of the table. [slots, context]
        lengths: Lengths of the table's rows. [slots]
    """
    size = int(lengths[rows].max())
    order = np.sort(rows)
    if size * (len(rows) - 1) <= _WORTH:
        return DecodeRows(order, ())
    order = np.array(sorted(order.tolist(), key=lambda row: tokens[row, : lengths[row]].tobytes()))
    differs = tokens[order[1:], :size] != tokens[order[:-1], :size]
    common = np.where(differs.any(axis=1), differs.argmax(axis=1), size)
    common = np.minimum(common, np.minimum(lengths[order[1:]], lengths[order[:-1]]))
    return DecodeRows(order, tuple(_best(common.tolist(), 0, len(order))[1]))


def _best(common: list[int], low: int, high: int, depth: int = 0) -> tuple[int, list[PrefixGroup]]:
    """The most keys that can be saved among places low..high-1, and the groups that save them.

    `common[i]` is the length of the prefix that the rows at places i and i + 1 share.
    """
    if high - low < 2 or depth == _DEEPEST:
        return 0, []
    least = min(common[low : high - 1])
    # Cut at all minima at once: many problems share the same prefix, and one cut at a time would recurse that deep.
    cuts = [place + 1 for place in range(low, high - 1) if common[place] == least]
    parts = [_best(common, start, stop, depth + 1) for start, stop in pairwise((low, *cuts, high))]
    apart = sum(saved for saved, _ in parts)
    together = least * (high - low - 1) - _WORTH
    if together > max(apart, 0):
        return together, [PrefixGroup(low, high, least)]
    return apart, [group for _, groups in parts for group in groups]
