"""One step of the model over the rows of a table: tokens in, logits of the next tokens out.

On a GPU decode steps come from CUDA graphs, one for each bucket of (rows, length), over static buffers. A decode step of a small
model is hundreds of kernels of a few microseconds each, so its cost is launching them; a graph launches all of them at once. A
graph's shapes are fixed: it computes rows 0..R-1 of the table, including those that are not decoding, over the first L
positions. The results of rows that are not decoding go to the table's spare position and are never read. The graphs are written
against the documentation of torch.cuda.CUDAGraph; the bucketing and the static step are tested on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ramify.engines.decoder import Decoder
from ramify.engines.slots import CacheShape, DecodeRows, PrefillChunk, SlotTable, StepAttention

_LEAST_LENGTH = 256
_WARM_UPS = 3
_SCORED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shape of a graph: this many rows of the table over this many positions."""

    rows: int
    length: int


def bucket_for(highest_row: int, longest: int, shape: CacheShape) -> Bucket:
    """Return the smallest bucket that holds a step; sizes are powers of two, limited to the table's sizes.

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
        """Return the logits of every row of the bucket. [R, V]"""
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
        # The learner's thread may take memory meanwhile, which is no part of the graph.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = step.compute()
        return step, graph, logits


def cache_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the type of keys and values: on a CPU float32 for a model in 16 bits too, since numpy attends to them in place."""
    if model.device.type != "cpu":
        return model.dtype
    return torch.promote_types(model.dtype, torch.float32)


def cache_shape(model: PreTrainedModel, num_slots: int, context_tokens: int) -> CacheShape:
    """Return the sizes of the key-value store that `model` needs."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return CacheShape(
        config.num_hidden_layers, num_slots, config.num_key_value_heads, context_tokens, head_dim
    )


class ModelStep:
    """Feeds tokens and updates the table's lengths.

    On a CPU all tokens of a step go through the model at once, packed without padding. On a GPU rows that feed one
    token go through a captured graph, and new context goes through a separate pass.
    """

    def __init__(self, model: PreTrainedModel, table: SlotTable) -> None:
        self._model = model
        self._table = table
        self._decoder: Decoder | None = None
        self._graphs: DecodeGraphs | None = None
        self._addresses: tuple[int, ...] = ()

    def weights_changed(self) -> None:
        """Use the model's current weights."""
        # A GPU reads the weights in place; its graphs stay valid as long as the weights do not move.
        if self._graphs is None or self._addresses != self._weight_addresses():
            self.forget()

    def forget(self) -> None:
        """Drop copies of weights and captured graphs."""
        self._decoder = self._graphs = None

    def __call__(
        self, decode: DecodeRows | None, tokens: npt.NDArray[np.int64], chunks: Sequence[PrefillChunk]
    ) -> torch.Tensor:
        """Feed one token for each of the decode rows, then the chunks.

        Args:
            decode: The decode rows, in order; None if there are none.
            tokens: Tokens of the decode rows. [B]
            chunks: Prefill chunks, whose tokens are already in the table.

        Returns:
            Logits of the next token of the decode rows, then of the chunks. [B + number of chunks, V]
        """
        decoder = self._prepare()
        parts: list[torch.Tensor] = []
        if decode is not None and self._graphs is not None:
            parts.append(self._graphs.logits(decode.rows, tokens))
            self._table.append(decode.rows, tokens)
            decode, tokens = None, tokens[:0]
        if decode is not None or chunks:
            parts.append(self._feed(decoder, decode, tokens, chunks))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    @torch.inference_mode()
    def score(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return the logprob of each token after the first, nats; the table stays as it is. [T] -> [T - 1]"""
        size = len(token_ids)
        shape = replace(self._table.shape, num_slots=1, context_tokens=size)
        table = SlotTable(shape, self._table.keys.dtype, self._table.keys.device)
        table.tokens[0] = token_ids
        decoder = self._prepare()
        hidden = _hidden(decoder, table, None, token_ids[:0].astype(np.int64), [PrefillChunk(0, 0, size)])[
            :-1
        ]
        following = torch.from_numpy(token_ids[1:, None].astype(np.int64)).to(hidden.device)
        logprobs = []
        for start in range(0, size - 1, _SCORED_AT_ONCE):
            part = slice(start, start + _SCORED_AT_ONCE)
            scores = decoder.logits(hidden[part]).float()
            logprobs.append(torch.log_softmax(scores, dim=-1).gather(1, following[part])[:, 0])
        scored: npt.NDArray[np.float64] = torch.cat(logprobs).double().cpu().numpy()
        return scored

    def _prepare(self) -> Decoder:
        if self._decoder is None:
            self._decoder = Decoder(self._model, self._table.spare_position + 1)
            self._addresses = self._weight_addresses()
            if self._model.device.type == "cuda":
                self._graphs = DecodeGraphs(self._decoder, self._table)
        return self._decoder

    def _weight_addresses(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self._model.parameters())

    def _feed(
        self,
        decoder: Decoder,
        decode: DecodeRows | None,
        tokens: npt.NDArray[np.int64],
        chunks: Sequence[PrefillChunk],
    ) -> torch.Tensor:
        hidden = _hidden(decoder, self._table, decode, tokens, chunks)
        if chunks:
            # Logits in the middle of a chunk are not needed.
            ends = len(tokens) + np.cumsum([chunk.size for chunk in chunks]) - 1
            last = np.concatenate([np.arange(len(tokens)), ends])
            hidden = hidden[torch.from_numpy(last).to(hidden.device)]
        if decode is not None:
            self._table.append(decode.rows, tokens)
        for chunk in chunks:
            self._table.lengths[chunk.row] = chunk.stop
        return decoder.logits(hidden)


def _hidden(
    decoder: Decoder,
    table: SlotTable,
    decode: DecodeRows | None,
    tokens: npt.NDArray[np.int64],
    chunks: Sequence[PrefillChunk],
) -> torch.Tensor:
    """Return the last hidden states of the tokens of a step, whose keys and values are written into the table. [T, H]"""
    attend = StepAttention(table, decode, chunks)
    fed = np.concatenate([tokens, *(table.tokens[s.row, s.start : s.stop] for s in chunks)])
    return decoder.hidden(torch.from_numpy(fed).to(attend.places.device), attend.places, attend)
