"""Attention of the decode rows on a CPU: each query reads its own row, and shared prefixes are read once.

numpy's BLAS multiplies two query heads with a few hundred keys two to three times as fast as torch's attention does.
So numpy computes scores and outputs, and torch the softmax.
"""

import numpy as np
import numpy.typing as npt
import torch

from ramify.engines.shared_prefixes import DecodeRows
from ramify.engines.slots import SlotTable


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
    """The inverse of `_join`. [H, n G, X] -> [n, H, G, X]"""
    heads, _, size = joined.shape
    return joined.reshape(heads, here.stop - here.start, -1, size).swapaxes(0, 1)
