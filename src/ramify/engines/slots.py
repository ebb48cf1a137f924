"""Slots: rows of one key-value store, with the tokens that each row holds.

A row never moves. An active row belongs to a sequence in progress. A released row keeps its tokens until the row is
needed, and a request that starts with them continues from there. Matching is by token ids alone.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ramify.core.errors import MachineError

TokenIds: TypeAlias = npt.NDArray[np.int32]


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
    """The row that shares the most tokens with a request, and for how many of them it has keys and values."""

    row: int
    length: int


class SlotTable:
    """The key-value store and its content.

    Attributes:
        shape: Sizes of the store.
        keys, values: One position more than the context: the spare position, where nothing is kept.
            [layers, slots, kv heads, context + 1, head dim]
        tokens: Ids of each row; meaningful up to its length. [slots, context]
        lengths: Number of tokens of each row whose keys and values have been computed. [slots]
        active: Whether each row belongs to a sequence in progress. [slots]
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the memory.

        Raises:
            MachineError: There is not enough memory.
        """
        self.shape = shape
        size = (
            2,
            shape.num_layers,
            shape.num_slots,
            shape.num_kv_heads,
            shape.context_tokens + 1,
            shape.head_dim,
        )
        try:
            self._store = torch.zeros(size, dtype=dtype, device=device)
        except RuntimeError as error:
            # torch raises this on every device if the allocator refuses.
            raise MachineError(
                f"engine.slots: {shape.num_slots} slots of {shape.context_tokens} tokens take "
                f"{math.prod(size) * dtype.itemsize / 2**30:.1f} GiB, which this machine does not have. Lower engine.slots."
            ) from error
        self.keys, self.values = self._store[0], self._store[1]
        self.tokens = np.full((shape.num_slots, shape.context_tokens), -1, np.int32)
        self.lengths = np.zeros(shape.num_slots, np.int64)
        self.active = np.zeros(shape.num_slots, np.bool_)
        self._last_used = np.zeros(shape.num_slots, np.int64)
        self._clock = 0

    @property
    def spare_position(self) -> int:
        """A position that belongs to no token."""
        return self.shape.context_tokens

    @property
    def on_cpu_in_float32(self) -> bool:
        """Return True if numpy can read keys and values in place."""
        return self.keys.device.type == "cpu" and self.keys.dtype == torch.float32

    @property
    def num_free(self) -> int:
        """Number of sequences that can still become active."""
        return self.shape.num_slots - int(self.active.sum())

    def clear(self) -> None:
        """Forget every released token, and when each row was last used. Call it only while no row is active."""
        # When, because the row that a sequence gets decides its place in the batch, and so the last bits of its logits.
        self.lengths[:] = 0
        self._last_used[:] = 0
        self._clock = 0

    def free(self) -> None:
        """Release the memory now, even if something still references the table."""
        self._store = self.keys = self.values = self._store.new_empty(0)

    def longest_prefix(self, token_ids: TokenIds) -> Match:
        """The row whose computed tokens share the longest prefix with `token_ids`.

        On a tie a released row that holds nothing else comes first (it can be taken as it is), then the lowest index.
        """
        size = len(token_ids)
        if not size:
            return Match(0, 0)
        same = self.tokens[:, :size] == token_ids
        shared = np.minimum(np.where(same.all(axis=1), size, np.argmin(same, axis=1)), self.lengths)
        most = shared.max()
        best = shared == most
        whole = best & ~self.active & (self.lengths == most)
        return Match(int(np.argmax(whole if whole.any() else best)), int(most))

    def allocate(self, contexts: Sequence[TokenIds], matches: Sequence[Match]) -> list[Match]:
        """Give each context an active row that holds as much of it as any row does, but never its last token.

        A context that continues the whole of a released row takes that row as it is. The others get the least needed
        row, filled from the row that matches best.

        Args:
            contexts: At most `num_free`.
            matches: The longest prefix of each context without its last token, as of now.
        """
        allocated: dict[int, Match] = {}
        for index, match in enumerate(matches):
            if match.length and not self.active[match.row] and self.lengths[match.row] == match.length:
                allocated[index] = self._take(contexts[index], match.row, match.length)
        unallocated = [index for index in range(len(contexts)) if index not in allocated]
        sources = {matches[index].row for index in unallocated if matches[index].length}
        overwritten: set[int] = set()
        for index, row in zip(unallocated, self._least_needed(sources) if unallocated else [], strict=False):
            match = matches[index]
            if match.row in overwritten:
                match = self.longest_prefix(contexts[index][:-1])
            if match.length and match.row != row:
                self._store[:, :, row, :, : match.length] = self._store[:, :, match.row, :, : match.length]
            allocated[index] = self._take(contexts[index], row, match.length)
            overwritten.add(row)
        return [allocated[index] for index in range(len(contexts))]

    def _take(self, token_ids: TokenIds, row: int, length: int) -> Match:
        self.tokens[row, : len(token_ids)] = token_ids
        self.lengths[row] = length
        self.active[row] = True
        return Match(row, length)

    def append(self, rows: npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]) -> None:
        """Record that each of `rows` now holds the keys and values of one more token."""
        self.tokens[rows, self.lengths[rows]] = token_ids
        self.lengths[rows] += 1

    def release(self, row: int) -> None:
        """Release the row of a sequence that has ended or paused; its tokens stay."""
        self.active[row] = False
        self._clock += 1
        self._last_used[row] = self._clock

    def _least_needed(self, wanted: set[int]) -> list[int]:
        """Released rows, in the order in which they may be overwritten.

        Empty rows come first, then rows whose tokens another row holds too (nothing would have to be recomputed), then
        the least recently used; rows that are `wanted` as sources come last.
        """
        released = np.flatnonzero(~self.active)
        redundant = self._redundant()
        keys = [
            (
                int(row) in wanted,
                self.lengths[row] > 0 and int(row) not in redundant,
                self._last_used[row],
                row,
            )
            for row in released
        ]
        return [int(key[-1]) for key in sorted(keys)]

    def _redundant(self) -> set[int]:
        """Rows whose tokens are a prefix of another row's; of equal rows, all but one."""
        held = sorted(
            (self.tokens[row, : self.lengths[row]].tobytes(), bool(self.active[row]), int(row))
            for row in np.flatnonzero(self.lengths)
        )
        return {
            row for (ids, _, row), (following, *_) in itertools.pairwise(held) if following.startswith(ids)
        }
