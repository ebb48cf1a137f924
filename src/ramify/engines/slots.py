"""Slots: rows of one key-value store, with the tokens that each row holds.

Rows 0..num_active-1 belong to sequences that are being written; they are kept together at the front so that a
decode step is a plain slice. The rest are parked: their tokens stay until the row is needed, and a request that
starts with them goes on from there. Matching is by token ids alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of the key-value store."""

    num_layers: int
    num_slots: int
    num_kv_heads: int
    context_tokens: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Match:
    """The row that shares most tokens with a request, and how many of them have keys and values."""

    row: int
    length: int


class SlotTable:
    """The key-value store and what is in it."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        size = (
            2,
            shape.num_layers,
            shape.num_slots,
            shape.num_kv_heads,
            shape.context_tokens,
            shape.head_dim,
        )
        self._store = torch.zeros(size, dtype=dtype, device=device)
        self.keys, self.values = self._store[0], self._store[1]
        self._tokens = np.full((shape.num_slots, shape.context_tokens), -1, np.int32)
        self.lengths = np.zeros(shape.num_slots, np.int64)
        self._last_used = np.zeros(shape.num_slots, np.int64)
        self._clock = 0
        self.num_active = 0

    @property
    def has_room(self) -> bool:
        """Whether one more sequence can become active."""
        return self.num_active < self.shape.num_slots

    def clear(self) -> None:
        """Forget every parked token (the weights have changed). Not allowed while a row is active."""
        if self.num_active:
            raise RuntimeError("weights changed while sequences were being written")
        self.lengths[:] = 0

    def free(self) -> None:
        """Give the memory back now; whoever still holds the table would keep it otherwise."""
        self._store.untyped_storage().resize_(0)

    def longest_prefix(self, token_ids: npt.NDArray[np.int32]) -> Match:
        """The row whose computed tokens share the longest prefix with `token_ids`; the smallest row of equals."""
        size = len(token_ids)
        if not size:
            return Match(0, 0)
        same = self._tokens[:, :size] == token_ids
        first_difference = np.where(same.all(axis=1), size, np.argmin(same, axis=1))
        shared = np.minimum(first_difference, self.lengths)
        row = int(np.argmax(shared))
        return Match(row, int(shared[row]))

    def activate(self, token_ids: npt.NDArray[np.int32], match: Match, keep: int) -> int:
        """Give a request the next active row, holding its first `keep` tokens; returns the row.

        A parked row that the request goes on from in full is taken as it is; else the matched tokens are copied
        into the parked row that was used least recently.
        """
        row = self.num_active
        is_continuation = match.row >= self.num_active and keep == self.lengths[match.row]
        if is_continuation:
            self._swap(row, match.row)
        else:
            parked = np.arange(row, self.shape.num_slots)
            victim = int(parked[np.lexsort((parked, self._last_used[parked]))[0]])
            source = {row: victim, victim: row}.get(match.row, match.row)
            self._swap(row, victim)
            if keep and source != row:
                self._store[:, :, row, :, :keep] = self._store[:, :, source, :, :keep]
        self._tokens[row, : len(token_ids)] = token_ids
        self.lengths[row] = keep
        self.num_active += 1
        return row

    def append(self, rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """Record that each of `rows` now holds keys and values of one more token."""
        self._tokens[rows, self.lengths[rows]] = tokens
        self.lengths[rows] += 1

    def extend(self, row: int, count: int) -> None:
        """Record that keys and values of the next `count` tokens of an activated request were computed."""
        self.lengths[row] += count

    def park(self, row: int) -> int:
        """Take `row` out of the active ones; returns the row whose sequence moved into its place."""
        last = self.num_active - 1
        self._swap(row, last)
        self.num_active = last
        self._clock += 1
        self._last_used[last] = self._clock
        return last

    def _swap(self, first: int, second: int) -> None:
        if first == second:
            return
        size = int(max(self.lengths[first], self.lengths[second]))
        if size:
            pair, other = [first, second], [second, first]
            self._store[:, :, pair, :, :size] = self._store[:, :, other, :, :size]
        for table in (self._tokens, self.lengths, self._last_used):
            table[[first, second]] = table[[second, first]]
