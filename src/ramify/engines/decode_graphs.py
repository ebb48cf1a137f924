"""Decode steps on a GPU from CUDA graphs: one graph for each bucket of (rows, length), over static buffers.

A decode step of a small model is hundreds of kernels of a few microseconds each, so its cost is launching them; a graph
launches all of them at once. A graph's shapes are fixed: it computes rows 0..R-1 of the table, including those that are
not decoding, over the first L positions. The results of rows that are not decoding go to the table's spare position and
are never read.

Written against the documentation of torch.cuda.CUDAGraph and not run on a GPU yet; the bucketing and the static step
are tested on a CPU.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from ramify.engines.decoder import Decoder
from ramify.engines.slots import CacheShape, SlotTable

_LEAST_LENGTH = 256
_WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shape of a graph: this many rows of the table over this many positions."""

    rows: int
    length: int


def bucket_for(highest_row: int, longest: int, shape: CacheShape) -> Bucket:
    """The smallest bucket that holds a step; sizes are powers of two, limited to the table's sizes.

    Args:
        highest_row: Highest index of a row that is decoding.
        longest: Most keys that a row sees.
        shape: Shape of the table.
    """
    return Bucket(
        min(_power_of_two(highest_row + 1), shape.num_slots),
        min(max(_power_of_two(longest), _LEAST_LENGTH), shape.context_tokens),
    )


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


class StaticStep:
    """A decode step whose inputs and output are in buffers that never move."""

    def __init__(self, decoder: Decoder, table: SlotTable, bucket: Bucket) -> None:
        device = table.keys.device
        self._decoder = decoder
        self._table = table
        self._bucket = bucket
        self._tokens = torch.zeros(bucket.rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(bucket.rows, dtype=torch.int64, device=device)
        self._rows = torch.arange(bucket.rows, device=device)
        self._places = torch.arange(bucket.length, device=device)
        self._hidden_keys = torch.zeros(0)

    def fill(self, rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """Set the token that each of `rows` feeds; every other row of the bucket writes to the spare position."""
        inputs = np.zeros((2, self._bucket.rows), np.int64)
        inputs[1] = self._table.spare_position
        inputs[0, rows] = tokens
        inputs[1, rows] = self._table.lengths[rows]
        both = torch.from_numpy(inputs)
        self._tokens.copy_(both[0])
        self._positions.copy_(both[1])

    def compute(self) -> torch.Tensor:
        """Logits of every row of the bucket. [R, V]"""
        beyond = self._places[None] > self._positions[:, None]
        zeros = torch.zeros(beyond.shape, dtype=self._table.keys.dtype, device=beyond.device)
        self._hidden_keys = zeros.masked_fill_(beyond, float("-inf"))[:, None, None]
        return self._decoder.logits(self._decoder.hidden(self._tokens, self._positions, self._attend))

    def _attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [R, Hq, D], key and value [R, Hkv, D] -> [R, Hq, D]."""
        keys, values = self._table.keys[layer], self._table.values[layer]
        keys[self._rows, :, self._positions] = key
        values[self._rows, :, self._positions] = value
        count, length = self._bucket.rows, self._bucket.length
        attended = F.scaled_dot_product_attention(
            query.reshape(count, key.shape[1], -1, key.shape[2]),
            keys[:count, :, :length],
            values[:count, :, :length],
            attn_mask=self._hidden_keys,
            scale=scaling,
        )
        return attended.reshape(query.shape)


class DecodeGraphs:
    """Runs decode steps; a bucket's graph is captured when it is first needed."""

    def __init__(self, decoder: Decoder, table: SlotTable) -> None:
        self._decoder = decoder
        self._table = table
        self._captured: dict[Bucket, tuple[StaticStep, torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def logits(self, rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> torch.Tensor:
        """Feed one token for each of `rows` and write its keys and values. [B], [B] -> [B, V]"""
        bucket = bucket_for(int(rows.max()), int(self._table.lengths[rows].max()) + 1, self._table.shape)
        if bucket not in self._captured:
            self._captured[bucket] = self._capture(bucket, rows, tokens)
        step, graph, logits = self._captured[bucket]
        step.fill(rows, tokens)
        graph.replay()
        return logits[torch.from_numpy(rows).to(logits.device)]

    def _capture(
        self, bucket: Bucket, rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]
    ) -> tuple[StaticStep, torch.cuda.CUDAGraph, torch.Tensor]:
        step = StaticStep(self._decoder, self._table, bucket)
        step.fill(rows, tokens)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        # The warm-up writes the same keys and values as the step, so running the step again changes nothing.
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                step.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = step.compute()
        return step, graph, logits
