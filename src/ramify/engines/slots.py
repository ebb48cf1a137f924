"""Slots, rows of one key-value store with the tokens that each row holds, and the attention of an engine step over them.

A row never moves. An active row belongs to a sequence in progress. A released row keeps its tokens until the row is
needed, and a request that starts with them continues from there. Matching is by token ids alone.

A step has one token for each decoding sequence, and prefill chunks of new context. A decode step has one query per row and
many keys, so its cost is the number of keys that it reads. Decode rows that begin with the same tokens are grouped, so that
the shared keys are read from one of them only.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.bias import causal_lower_right

from ramify.core.errors import MachineError
from ramify.modeling.attention import grouped_sdpa

TokenIds: TypeAlias = npt.NDArray[np.int32]

_WORTH = 1000
"""How many keys a shared prefix must save to be worth its own calls."""

_DEEPEST = 100
"""Deepest nesting of prefixes within prefixes that is searched."""


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
        """Return the row whose computed tokens share the longest prefix with `token_ids`.

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
        """Return released rows, in the order in which they may be overwritten.

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
        """Return the rows whose tokens are a prefix of another row's; of equal rows, all but one."""
        held = sorted(
            (self.tokens[row, : self.lengths[row]].tobytes(), bool(self.active[row]), int(row))
            for row in np.flatnonzero(self.lengths)
        )
        return {
            row for (ids, _, row), (following, *_) in itertools.pairwise(held) if following.startswith(ids)
        }


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
    """Return the most keys that can be saved among the rows low..high-1 of the order, and the groups that save them.

    `common[i]` is the length of the prefix that the rows i and i + 1 of the order share.
    """
    if high - low < 2 or depth == _DEEPEST:
        return 0, []
    least = min(common[low : high - 1])
    # Cut at all minima at once: many problems share the same prefix, and one cut at a time would recurse that deep.
    cuts = [index + 1 for index in range(low, high - 1) if common[index] == least]
    parts = [_best(common, start, stop, depth + 1) for start, stop in itertools.pairwise((low, *cuts, high))]
    apart = sum(saved for saved, _ in parts)
    together = least * (high - low - 1) - _WORTH
    if together > max(apart, 0):
        return together, [PrefixGroup(low, high, least)]
    return apart, [group for _, groups in parts for group in groups]


class RowAttention:
    """Decode attention over a float32 table on a CPU.

    Args:
        table: Holds the keys and values of the rows.
        decode: The decode rows. [B]
        sizes: Number of keys that each of them sees. [B]
    """

    def __init__(self, table: SlotTable, decode: DecodeRows, sizes: npt.NDArray[np.int64]) -> None:
        self._keys = table.keys.numpy()
        self._values = table.values.numpy()
        self._groups = [(slice(g.start, g.stop), int(decode.rows[g.start]), g.prefix) for g in decode.groups]
        starts = np.zeros(len(decode.rows), np.int64)
        for group in decode.groups:
            starts[group.start : group.stop] = group.prefix
        self._own = list(zip(decode.rows.tolist(), starts.tolist(), sizes.tolist(), strict=True))
        self._longest = int(sizes.max())
        self._scores: torch.Tensor | None = None

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend with scaled queries, grouped by key head. [B, Hkv, G, D] -> [B, Hkv, G, D]"""
        keys, values = self._keys[layer], self._values[layer]
        if self._scores is None:
            # Beyond a row's size the scores stay -inf; all layers fill the same places before it.
            self._scores = query.new_full((*query.shape[:3], self._longest), float("-inf"))
        scores, queries = self._scores.numpy(), query.numpy()
        for here, row, prefix in self._groups:
            scores[here, ..., :prefix] = _split(
                _join(queries[here]) @ keys[row, :, :prefix].swapaxes(1, 2), here
            )
        columns = queries.swapaxes(2, 3)
        for index, (row, start, stop) in enumerate(self._own):
            scores[index, ..., start:stop] = (keys[row, :, start:stop] @ columns[index]).swapaxes(1, 2)
        weights = torch.softmax(self._scores, dim=-1).numpy()
        output = np.empty(queries.shape, np.float32)
        for index, (row, start, stop) in enumerate(self._own):
            np.matmul(weights[index, ..., start:stop], values[row, :, start:stop], out=output[index])
        for here, row, prefix in self._groups:
            output[here] += _split(_join(weights[here, ..., :prefix]) @ values[row, :, :prefix], here)
        return torch.from_numpy(output)


def _join(parts: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Join the rows of a group into the queries of one row. [n, H, G, X] -> [H, n G, X]"""
    count, heads, per_head, size = parts.shape
    return parts.swapaxes(0, 1).reshape(heads, count * per_head, size)


def _split(joined: npt.NDArray[np.float32], here: slice) -> npt.NDArray[np.float32]:
    """Undo `_join`. [H, n G, X] -> [n, H, G, X]"""
    heads, _, size = joined.shape
    return joined.reshape(heads, here.stop - here.start, -1, size).swapaxes(0, 1)


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """New context tokens of one row: positions `start` to `stop` of the row."""

    row: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.stop - self.start


class StepAttention:
    """Writes the keys and values of a step's tokens into the table, then attends.

    The step's tokens are one for each decode row, in order, then those of the chunks.

    Attributes:
        places: Position of each token in its row. [T]
    """

    def __init__(self, table: SlotTable, decode: DecodeRows | None, chunks: Sequence[PrefillChunk]) -> None:
        self._table = table
        device = table.keys.device
        rows = decode.rows if decode else np.zeros(0, np.int64)
        lengths = table.lengths[rows]
        positions = np.concatenate([lengths, *(np.arange(s.start, s.stop) for s in chunks)])
        of_tokens = np.concatenate([rows, *(np.full(s.size, s.row) for s in chunks)])
        self._rows = torch.from_numpy(of_tokens).to(device)
        self.places = torch.from_numpy(positions).to(device)
        self._num_decode = len(rows)
        # If numpy cannot read the table, a decode row is treated as a chunk of one token.
        one_by_one = [
            PrefillChunk(row, size, size + 1)
            for row, size in zip(rows.tolist(), lengths.tolist(), strict=True)
        ]
        self._by_row: RowAttention | None = None
        if decode and table.on_cpu_in_float32:
            self._by_row = RowAttention(table, decode, lengths + 1)
            one_by_one = []
        self._chunks = [(s, _hidden(s, table.keys)) for s in (*one_by_one, *chunks)]

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [T, Hq, D], key and value [T, Hkv, D] -> [T, Hq, D]; Hq is a multiple of Hkv."""
        keys, values, dtype = self._table.keys[layer], self._table.values[layer], query.dtype
        query, key, value = (states.to(keys.dtype) for states in (query, key, value))
        keys[self._rows, :, self.places] = key
        values[self._rows, :, self.places] = value
        outputs: list[torch.Tensor] = []
        offset = 0
        if self._by_row is not None:
            offset, heads = self._num_decode, key.shape[1]
            grouped = (query[:offset] * scaling).view(offset, heads, -1, key.shape[2])
            outputs.append(self._by_row(layer, grouped).view(offset, *query.shape[1:]))
        for chunk, mask in self._chunks:
            attended = grouped_sdpa(
                query[offset : offset + chunk.size].transpose(0, 1).unsqueeze(0),
                keys[chunk.row : chunk.row + 1, :, : chunk.stop],
                values[chunk.row : chunk.row + 1, :, : chunk.stop],
                scaling,
                mask,
                causal=chunk.start == 0,
            )
            outputs.append(attended[0].transpose(0, 1))
            offset += chunk.size
        return (torch.cat(outputs) if len(outputs) > 1 else outputs[0]).to(dtype)


def _hidden(chunk: PrefillChunk, like: torch.Tensor) -> torch.Tensor | None:
    """Return -inf for keys that a token of the chunk does not see; None if a causal flag or no mask is enough. [T, K]"""
    if not chunk.start or chunk.size == 1:
        return None
    if like.device.type == "cuda":
        # No mask either, where the flash kernel takes the type.
        bias: torch.Tensor = causal_lower_right(chunk.size, chunk.stop)
        return bias
    return like.new_full((chunk.size, chunk.stop), float("-inf")).triu_(chunk.start + 1)
