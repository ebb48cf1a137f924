"""How the decode rows of a step are put into attention calls.

One query a row is little work for many keys, so what counts is how many keys are read. Rows that begin with the same
tokens read those from one of them; rows that lie side by side and have like lengths share a call for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHARE_TOKENS = 1000
"""Keys that a shared prefix has to save to be worth its extra call and the merge."""
PAD_TOKENS = 128
"""Padded keys that cost about as much as a call of its own."""


@dataclass(frozen=True, slots=True)
class Group:
    """Decode rows `start..stop-1` (in the order of the step) that share their first `prefix` tokens (0: none)."""

    start: int
    stop: int
    prefix: int


@dataclass(frozen=True, slots=True)
class Run:
    """Decode rows `start..stop-1` (in the order of the step) that are neighbours in the table."""

    start: int
    stop: int
    group: int


@dataclass(frozen=True, slots=True)
class DecodeGroups:
    """An order of the decode rows, and calls over slices of it. Valid as long as the rows are the same."""

    rows: npt.NDArray[np.int64]
    groups: tuple[Group, ...]
    runs: tuple[Run, ...]


def group_rows(
    rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> DecodeGroups:
    """Order and group `rows`; the result depends on what the rows hold alone.

    Args:
        rows: Of the sequences that write. [B]
        tokens: Of the table. [slots, context]
        lengths: Of the table. [slots]
    """
    ordered: list[int] = []
    groups: list[Group] = []
    runs: list[Run] = []
    for prefix, members in _shared_prefixes(rows, tokens, lengths):
        start = len(ordered)
        members = sorted(members)
        ordered += members
        runs += [Run(start + a, start + b, len(groups)) for a, b in _runs(members, lengths)]
        groups.append(Group(start, len(ordered), prefix))
    return DecodeGroups(np.array(ordered, np.int64), tuple(groups), tuple(runs))


def _shared_prefixes(
    rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> list[tuple[int, list[int]]]:
    """Groups of rows with the prefix that they read together; rows that share nothing worth it come last."""
    size = int(lengths[rows].max())
    if size * (len(rows) - 1) <= SHARE_TOKENS:
        return [(0, rows.tolist())]
    order = sorted(sorted(rows.tolist()), key=lambda row: tokens[row, : lengths[row]].tobytes())
    sorted_tokens = tokens[order, :size]
    differs = sorted_tokens[1:] != sorted_tokens[:-1]
    common = np.where(differs.any(axis=1), differs.argmax(axis=1), size)
    common = np.minimum(common, np.minimum(lengths[order[1:]], lengths[order[:-1]])).tolist()

    def best(low: int, high: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Most keys saved among order[low:high], and the (prefix, low, high) that save them."""
        if high - low < 2:
            return 0, []
        cut = min(range(low, high - 1), key=common.__getitem__)
        here = common[cut] * (high - low - 1) - SHARE_TOKENS
        left, right = best(low, cut + 1), best(cut + 1, high)
        below = left[0] + right[0]
        return (here, [(common[cut], low, high)]) if here > max(below, 0) else (below, left[1] + right[1])

    shared = best(0, len(order))[1]
    found = [(prefix, order[low:high]) for prefix, low, high in shared]
    alone = set(order).difference(*(members for _, members in found))
    return [*found, (0, list(alone))] if alone else found


def _runs(members: Sequence[int], lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Slices of neighbouring rows whose padding costs less than the calls it saves."""
    starts = [0]
    longest = total = int(lengths[members[0]])
    for index in range(1, len(members)):
        length = int(lengths[members[index]])
        count = index - starts[-1] + 1
        longest, total = max(longest, length), total + length
        if members[index] != members[index - 1] + 1 or longest * count - total > PAD_TOKENS * (count - 1):
            starts.append(index)
            longest = total = length
    return list(zip(starts, [*starts[1:], len(members)], strict=True))
