"""Attention of one engine step: one token for each decoding sequence, and stretches of new context."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ramify.engines.row_attention import RowAttention
from ramify.engines.shared_prefixes import DecodeRows
from ramify.engines.slots import SlotTable
from ramify.modeling.attention import grouped_sdpa


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


class StepAttention:
    """Writes the keys and values of a step's tokens into the table, then attends.

    The step's tokens are one for each decode row, in order, then those of the stretches.

    Attributes:
        places: Position of each token in its row. [T]
    """

    def __init__(self, table: SlotTable, decode: DecodeRows | None, stretches: Sequence[Stretch]) -> None:
        self._table = table
        device = table.keys.device
        rows = decode.rows if decode else np.zeros(0, np.int64)
        lengths = table.lengths[rows]
        positions = np.concatenate([lengths, *(np.arange(s.start, s.stop) for s in stretches)])
        of_tokens = np.concatenate([rows, *(np.full(s.size, s.row) for s in stretches)])
        self._rows = torch.from_numpy(of_tokens).to(device)
        self.places = torch.from_numpy(positions).to(device)
        self._num_decode = len(rows)
        # If numpy cannot read the table, a decode row is treated as a stretch of one token.
        one_by_one = [
            Stretch(row, size, size + 1) for row, size in zip(rows.tolist(), lengths.tolist(), strict=True)
        ]
        self._by_row: RowAttention | None = None
        if decode and table.on_cpu_in_float32:
            self._by_row = RowAttention(table, decode, lengths + 1)
            one_by_one = []
        self._stretches = [(s, _hidden(s, table.keys)) for s in (*one_by_one, *stretches)]

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [T, Hq, D], key and value [T, Hkv, D] -> [T, Hq, D]; Hq is a multiple of Hkv."""
        keys, values = self._table.keys[layer], self._table.values[layer]
        keys[self._rows, :, self.places] = key
        values[self._rows, :, self.places] = value
        outputs: list[torch.Tensor] = []
        offset = 0
        if self._by_row is not None:
            offset, heads = self._num_decode, key.shape[1]
            grouped = (query[:offset] * scaling).view(offset, heads, -1, key.shape[2])
            outputs.append(self._by_row(layer, grouped).view(offset, *query.shape[1:]))
        for stretch, mask in self._stretches:
            attended = grouped_sdpa(
                query[offset : offset + stretch.size].transpose(0, 1).unsqueeze(0),
                keys[stretch.row : stretch.row + 1, :, : stretch.stop],
                values[stretch.row : stretch.row + 1, :, : stretch.stop],
                scaling,
                mask,
                causal=stretch.start == 0,
            )
            outputs.append(attended[0].transpose(0, 1))
            offset += stretch.size
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _hidden(stretch: Stretch, like: torch.Tensor) -> torch.Tensor | None:
    """-inf for keys that a token of the stretch does not see; None if a causal flag or no mask is enough. [T, K]"""
    if not stretch.start or stretch.size == 1:
        return None
    return like.new_full((stretch.size, stretch.stop), float("-inf")).triu_(stretch.start + 1)
