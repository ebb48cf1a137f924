"""Attention of one engine step: one token for each sequence that writes, and stretches of new context."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ramify.engines.decode_groups import DecodeGroups, Group, Run
from ramify.engines.slots import SlotTable
from ramify.modeling.attention import grouped_sdpa, sdpa_with_lse


@dataclass(frozen=True, slots=True)
class Stretch:
    """New context tokens of one row: positions `start` to `stop` of the row."""

    row: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Call:
    """Decode rows `queries` (in the order of the step) against the `tokens` of neighbouring `rows`."""

    queries: slice
    rows: slice
    tokens: slice
    mask: torch.Tensor | None


class StepAttention:
    """Writes the keys and values of a step's tokens into the table, then attends.

    The step's tokens are one for each of the decode rows, in the order of their groups, then the stretches.

    Attributes:
        places: Position of each token in its row. [T]
    """

    def __init__(
        self,
        table: SlotTable,
        decode: DecodeGroups | None,
        stretches: Sequence[Stretch],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._table = table
        self._stretches = stretches
        self._dtype = dtype
        self._device = device
        rows = decode.rows if decode else np.zeros(0, np.int64)
        self._num_decode = len(rows)
        lengths = table.lengths[rows]
        positions = np.concatenate([lengths, *(np.arange(s.start, s.stop) for s in stretches)])
        of_tokens = np.concatenate([rows, *(np.full(s.size, s.row) for s in stretches)])
        self._rows = torch.from_numpy(of_tokens).to(device)
        self.places = torch.from_numpy(positions).to(device)
        self._own = [self._call(decode, run, lengths + 1) for run in decode.runs] if decode else []
        self._shared = (
            [_prefix_call(decode, group) for group in decode.groups if group.prefix] if decode else []
        )
        self._masks = [self._stretch_mask(stretch) for stretch in stretches]

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [T, Hq, D], key and value [T, Hkv, D] -> [T, Hq, D]; Hq is a multiple of Hkv."""
        keys, values = self._table.keys[layer], self._table.values[layer]
        keys[self._rows, :, self.places] = key
        values[self._rows, :, self.places] = value
        outputs: list[torch.Tensor] = []
        offset = self._num_decode
        if offset:
            heads, dim = key.shape[1:]
            grouped = query[:offset].reshape(offset, heads, -1, dim)
            outputs.append(self._attend_decode(grouped, keys, values, scaling).view(offset, -1, dim))
        for stretch, mask in zip(self._stretches, self._masks, strict=True):
            attended = grouped_sdpa(
                query[offset : offset + stretch.size].transpose(0, 1).unsqueeze(0),
                keys[stretch.row : stretch.row + 1, :, : stretch.stop],
                values[stretch.row : stretch.row + 1, :, : stretch.stop],
                scaling,
                mask,
                causal=mask is None,
            )
            outputs.append(attended[0].transpose(0, 1))
            offset += stretch.size
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _attend_decode(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Queries of the decode rows, heads of a group side by side. [B, Hkv, G, D] -> [B, Hkv, G, D]"""
        parts = [
            sdpa_with_lse(
                query[call.queries],
                keys[call.rows, :, call.tokens],
                values[call.rows, :, call.tokens],
                scaling,
                call.mask,
            )
            for call in self._own
        ]
        output = torch.cat([part[0] for part in parts])
        if self._shared:
            lse = torch.cat([part[1] for part in parts])
            for call in self._shared:
                here = call.queries
                key, value = keys[call.rows, :, call.tokens], values[call.rows, :, call.tokens]
                output[here] = self._with_prefix(query[here], key, value, scaling, output[here], lse[here])
        return output

    @staticmethod
    def _with_prefix(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        output: torch.Tensor,
        lse: torch.Tensor,
    ) -> torch.Tensor:
        """Add keys that all queries see to what they have seen: [n, Hkv, G, D], [1, Hkv, P, D] -> [n, Hkv, G, D]."""
        count, heads, per_head, dim = query.shape
        merged = query.transpose(0, 1).reshape(1, heads, count * per_head, dim)
        seen, seen_lse = sdpa_with_lse(merged, key, value, scaling)
        seen = seen.view(heads, count, per_head, dim).transpose(0, 1)
        weight = torch.sigmoid(seen_lse.view(heads, count, per_head).transpose(0, 1) - lse)
        return torch.lerp(output, seen, weight.unsqueeze(-1).to(output.dtype))

    def _call(self, decode: DecodeGroups, run: Run, sizes: npt.NDArray[np.int64]) -> _Call:
        """What the rows of a run read by themselves; a mask hides what lies beyond the shorter ones."""
        first = int(decode.rows[run.start])
        mine = sizes[run.start : run.stop]
        tokens = slice(decode.groups[run.group].prefix, int(mine.max()))
        mask = None
        if mine.min() < tokens.stop:
            hidden = np.arange(tokens.start, tokens.stop) >= mine[:, None]
            mask = self._added(torch.from_numpy(hidden).to(self._device))[:, None, None]
        return _Call(slice(run.start, run.stop), slice(first, first + run.stop - run.start), tokens, mask)

    def _stretch_mask(self, stretch: Stretch) -> torch.Tensor | None:
        """Which keys each token of a stretch sees, as something to add; None for a plain causal one. [T, K]"""
        if not stretch.start:
            return None
        shape = (stretch.size, stretch.stop)
        return self._added(torch.ones(shape, dtype=torch.bool, device=self._device).triu(stretch.start + 1))

    def _added(self, hidden: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return zeros.masked_fill_(hidden, float("-inf"))


def _prefix_call(decode: DecodeGroups, group: Group) -> _Call:
    """What all rows of a group read from the first of them."""
    row = int(decode.rows[group.start])
    return _Call(slice(group.start, group.stop), slice(row, row + 1), slice(0, group.prefix), None)
